"""Hyper-connections: several residual streams, which each sublayer reads and writes in its own mix.

Zhu et al. 2024, "Hyper-connections", https://arxiv.org/abs/2409.19606, section 2: with streams H,
n x d, a sublayer f reads h = A_m H, and H becomes A_r H + B f(h). In dynamic ones tanh of a map of
the normed streams is added to A_m, A_r and B, times a learned factor each, which starts at 0.01.
The streams start as copies of the embeddings and are averaged at the end; the paper sums them.
"""

from typing import Annotated, Any

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from ablate.config.conflicts import Conflict
from ablate.config.rules import Int
from ablate.model.connection import Connection

SMALL = 0.01  # factors of the dynamic part at the start


class Hyper(Connection):
    """At the start all streams are equal, A_m reads one of them, A_r is the identity and B is one:
    a plain residual stream. Sublayer k of the stack reads stream k mod `streams`; those that none
    reads at first, as with shared layers, stay equal."""

    revision = 2
    vector_parameters = ("mixes",)
    conflicts = (
        Conflict(
            lambda c: c("model.norm") == "post",
            "model.norm=post normalizes the residual stream, and model.connection=hyper has"
            " several; use model.norm=pre, sandwich, output or none",
        ),
    )

    def __init__(
        self, dim: int, *, streams: Annotated[int, Int(2, 16)], dynamic: bool, **position: Any
    ) -> None:
        super().__init__(dim, **position)
        self.streams = n = streams
        self.reads = nn.Parameter(torch.empty(n))
        self.mixes = nn.Parameter(torch.empty(n, n))
        self.writes = nn.Parameter(torch.empty(n))
        self.norm = self.map = self.factors = None
        if dynamic:
            self.norm = nn.LayerNorm(dim)
            # Of each stream: to A_m, to its row of A_r, to B.
            self.map = nn.Parameter(torch.empty(dim, n + 2))
            self.factors = nn.Parameter(torch.empty(3))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.reads)
        with torch.no_grad():
            self.reads[self.index % self.streams] = 1.0
        nn.init.eye_(self.mixes)
        nn.init.ones_(self.writes)
        if self.map is not None and self.factors is not None:
            nn.init.zeros_(self.map)
            nn.init.constant_(self.factors, SMALL)

    def read(self, x: Float[Tensor, "b i s"]) -> Float[Tensor, "b i {self.dim}"]:
        reads, _, _ = self._weights(x)
        return self._mixed(reads[..., None], x)[:, :, 0]

    def write(
        self,
        x: Float[Tensor, "b i s"],
        y: Float[Tensor, "b i {self.dim}"],
        embedded: Float[Tensor, "b i {self.dim}"] | None,
    ) -> Float[Tensor, "b i s"]:
        _, mixes, writes = self._weights(x)
        mixed = self._mixed(mixes, x)
        return rearrange(mixed + writes[..., None] * y[:, :, None], "b i n d -> b i (n d)")

    def _mixed(
        self, weights: Float[Tensor, "b i {self.streams} m"], x: Float[Tensor, "b i s"]
    ) -> Float[Tensor, "b i m {self.dim}"]:
        streams = self._streams(x).to(weights.dtype)
        # Autocast would round the residual streams; the meta device has none.
        with torch.autocast("cuda" if x.is_cuda else "cpu", enabled=False):
            return torch.einsum("binm,bind->bimd", weights, streams)

    def _streams(self, x: Float[Tensor, "b i s"]) -> Float[Tensor, "b i {self.streams} {self.dim}"]:
        return rearrange(x, "b i (n d) -> b i n d", n=self.streams)

    def _weights(
        self, x: Float[Tensor, "b i s"]
    ) -> tuple[Float[Tensor, "b i n"], Float[Tensor, "b i n n"], Float[Tensor, "b i n"]]:
        """A_m; A_r from one stream to another; B."""
        shape = (*x.shape[:2], self.streams)
        static = (
            self.reads.expand(shape),
            self.mixes.expand(*shape, self.streams),
            self.writes.expand(shape),
        )
        if self.map is None:
            return static
        assert self.norm is not None
        assert self.factors is not None
        more = (self.norm(self._streams(x)) @ self.map).tanh()
        of_reads, of_mixes, of_writes = more.split((1, self.streams, 1), dim=-1)
        dynamic = (of_reads[..., 0], of_mixes, of_writes[..., 0])
        return tuple(
            constant + factor * change
            for constant, factor, change in zip(static, self.factors, dynamic, strict=True)
        )
