"""ALiBi: the score of a query at i and a key at j loses slope * |i - j|, one fixed slope per head.

Press et al. 2022, "Train short, test long", section 3, https://arxiv.org/abs/2108.12409. The slopes
of h heads are 2^(-8/h), 2^(-16/h), ..., 2^-8. If h is not a power of two, the authors' code takes
those of the next lower power, then every other one of twice that many heads; so do we. The paper is
causal (|i - j| = i - j); for a bidirectional model the bias is symmetric, as the authors advise for
encoders in issue 5 of their repository. The bias is not divided by sqrt(k), as there.
"""

import math
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ablate.pos_enc import PosEnc


class Alibi(PosEnc):
    """A penalty that grows with the distance; no parameters, any length."""

    needs = frozenset({"distance_bias"})
    steepness: Float[Tensor, " h"]

    def __init__(self, **sizes: Any) -> None:
        super().__init__(**sizes)
        # The exponents of two, and not the slopes, because they are exact in any precision.
        self.register_buffer("steepness", torch.tensor(exponents(self.heads)), persistent=False)

    def bias(
        self, q: Float[Tensor, "b h i k"], i: Int[Tensor, " i"], j: Int[Tensor, " j"], layer: int
    ) -> Float[Tensor, "#b #h #i j"]:
        return self.penalty(q, i[:, None] - j)[None].to(q.dtype)

    def by_distance(
        self, q: Float[Tensor, "b h i k"], ahead: Int[Tensor, " *n"], layer: int
    ) -> tuple[Float[Tensor, "#b #h #i r"], Int[Tensor, " *n"]]:
        """The table has a row for every distance."""
        return self.penalty(q, ahead[None])[None], torch.arange(len(ahead), device=ahead.device)

    def penalty(
        self, q: Float[Tensor, "b h i k"], distance: Int[Tensor, " *n"]
    ) -> Float[Tensor, " h *n"]:
        """In float32 at least."""
        exact = torch.promote_types(q.dtype, torch.float32)
        slopes = 2.0 ** self.steepness.to(exact)
        return -slopes[:, None, None] * distance.abs().to(exact)


def exponents(heads: int) -> list[float]:
    """The slope of every head as a power of two."""
    power = 2 ** math.floor(math.log2(heads))
    regular = [-8 * n / power for n in range(1, power + 1)]
    between = [-8 * n / (2 * power) for n in range(1, 2 * power + 1, 2)]
    return regular + between[: heads - power]
