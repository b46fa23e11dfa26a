"""Sparsemax: the projection of the scores onto the simplex; most keys get zero weight.

Martins and Astudillo 2016, "From softmax to sparsemax", https://arxiv.org/abs/1602.02068:
w = max(s - tau, 0), where tau makes the weights sum to one (algorithm 1).
"""

from jaxtyping import Bool, Float, Int
from torch import Tensor

from ablate.model.normalizer import Normalizer
from ablate.model.normalizer.threshold import Threshold


class Sparsemax(Normalizer):
    def normalize(
        self, scores: Float[Tensor, "*bhi j"], seen: Int[Tensor, "*#bhi 1"] | int, *, training: bool
    ) -> Float[Tensor, "*bhi j"]:
        return Threshold.of(scores, tau, power=1)


def tau(
    ordered: Float[Tensor, "*bhi j"], rank: Float[Tensor, " j"]
) -> tuple[Float[Tensor, "*bhi j"], Bool[Tensor, "*bhi j"]]:
    """The threshold if the `rank` highest scores were kept, and whether the last of them is."""
    total = ordered.cumsum(-1)
    return (total - 1) / rank, 1 + rank * ordered > total
