"""Sinusoidal: x -> x + p, with p[n, 2m] = sin(n / base^(2m/d)), p[n, 2m + 1] = cos(same).

Vaswani et al. 2017, "Attention is all you need", section 3.5, https://arxiv.org/abs/1706.03762.
Fixed, and takes any length. The factor sqrt(d) on the embeddings, section 3.4 there, is
model.embedding_scale=sqrt.
"""

from typing import Any

import torch
from jaxtyping import Float, Num
from torch import Tensor

from ablate.config.rules import Positive
from ablate.pos_enc import Randomized


class Sinusoidal(Randomized):
    """A sine and a cosine of the position at every frequency, added to the input."""

    acts_in = "input"

    def __init__(self, *, base: Positive, **sizes: Any) -> None:
        super().__init__(**sizes)
        self.base = base

    def embed(
        self, x: Float[Tensor, "b i {self.dim}"], start: int = 0
    ) -> Float[Tensor, "b i {self.dim}"]:
        positions = self.places(torch.arange(start, start + x.shape[1], device=x.device))
        return x + waves(positions, dim=self.dim, base=self.base, dtype=x.dtype)


def waves(
    positions: Num[Tensor, " n"], *, dim: int, base: float, dtype: torch.dtype
) -> Float[Tensor, "n {dim}"]:
    """Sines at even indices, cosines at odd ones. An odd width ends on a sine."""
    exact = torch.promote_types(dtype, torch.float32)
    exponents = torch.arange(0, dim, 2, device=positions.device, dtype=exact) / dim
    angles = positions.to(exact)[:, None] / base**exponents
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)[:, :dim].to(dtype)
