"""Additive: score(q, k) = v . tanh(W q + U k), with v, W and U learned per head.

Bahdanau et al. 2015, "Neural machine translation by jointly learning to align and translate",
appendix A.1.2, https://arxiv.org/abs/1409.0473; initialized as in its appendix B.1: v zero, W and
U normal with standard deviation 0.001. There they are v_a, W_a, U_a; q is s_{i-1} and k is h_j.
Luong's "concat", v . tanh(W_a [h_t; h_s]), is the same thing: W_a is [W U] side by side.
Without `hidden` the multi-head projections serve as W and U, and only v is added; if the model has
no projections, the score has its own W and U, of the query's width (n' = n there).
"""

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from ablate.config.rules import Width
from ablate.kernel.additive_cpu import tanh_sum
from ablate.model.attention import Score, Summed, require_equal_widths


class Additive(Score):
    """A network with one hidden layer, of width `hidden`, that reads a query and a key.

    hidden=None: if the model projects queries and keys, they must be of equal width and are summed
    directly; otherwise the hidden width is that of the query.
    """

    option: ClassVar[str] = "additive"
    needs: ClassVar[frozenset[str]] = frozenset({"sum"})
    # Negative slope of the LeakyReLU of the hidden layer; None: tanh.
    slope: ClassVar[float | None] = None
    w: nn.Parameter | None
    u: nn.Parameter | None

    def __init__(self, *, hidden: Width | None, **sizes: Any) -> None:
        super().__init__(**sizes)
        if hidden is None and not self.projected:
            hidden = self.query_dim
        if hidden is None:
            require_equal_widths(self, self.option)
            self.w = self.u = None
        else:
            self.w = nn.Parameter(torch.empty(self.heads, self.query_dim, hidden))
            self.u = nn.Parameter(torch.empty(self.heads, self.key_dim, hidden))
        self.v = nn.Parameter(torch.empty(self.heads, hidden or self.query_dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.v)
        if self.w is not None and self.u is not None:
            nn.init.normal_(self.w, std=0.001)
            nn.init.normal_(self.u, std=0.001)

    def forward(
        self, q: Float[Tensor, "b h i k"], k: Float[Tensor, "b h j l"]
    ) -> Float[Tensor, "b h i j"]:
        return self.compare(q, self.keys(k))

    def keys(self, k: Float[Tensor, "b h j l"]) -> Float[Tensor, "b h j p"]:
        return k if self.u is None else k @ self.u

    def fused(
        self, q: Float[Tensor, "b h i k"], prepared: Float[Tensor, "b h j p"]
    ) -> Float[Tensor, "b h i j"]:
        q, k, v, _ = self.summed(q, prepared)
        return tanh_sum(q, k, v)

    def summed(self, q: Float[Tensor, "b h i k"], prepared: Float[Tensor, "b h j p"]) -> Summed:
        return Summed(q if self.w is None else q @ self.w, prepared, self.v, self.slope)

    def compare(
        self, q: Float[Tensor, "b h i k"], prepared: Float[Tensor, "b h j p"]
    ) -> Float[Tensor, "b h i j"]:
        """The specification: it makes a tensor `b h i j hidden`. A row depends only on its query,
        so a kernel may pass the queries in chunks.
        """
        q, k, v, slope = self.summed(q, prepared)
        x = q[:, :, :, None] + k[:, :, None]
        hidden = torch.tanh(x) if slope is None else F.leaky_relu(x, slope)
        # Not einsum: torch.compile fuses a product and a sum, but keeps all of `hidden` for einsum.
        return (hidden * v[:, None, None]).sum(-1)
