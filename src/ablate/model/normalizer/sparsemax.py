"""Sparsemax: the projection of the scores onto the simplex; most keys get zero weight.

Martins and Astudillo 2016, "From softmax to sparsemax", https://arxiv.org/abs/1602.02068:
w = max(s - tau, 0), where tau makes the weights sum to one (algorithm 1).
"""

from jaxtyping import Bool, Float
from torch import Tensor

from ablate.model.normalizer.threshold import Threshold


class Sparsemax(Threshold):
    power = 1

    def tau(
        self, ordered: Float[Tensor, "*bhi j"], rank: Float[Tensor, " j"]
    ) -> tuple[Float[Tensor, "*bhi j"], Bool[Tensor, "*bhi j"]]:
        total = ordered.cumsum(-1)
        return (total - 1) / rank, 1 + rank * ordered > total
