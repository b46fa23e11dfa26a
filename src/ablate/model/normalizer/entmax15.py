"""1.5-entmax, between softmax and sparsemax: keys with low scores get zero weight.

Peters, Niculae and Martins 2019, "Sparse sequence-to-sequence models",
https://arxiv.org/abs/1905.05702: w = max(s / 2 - tau, 0)^2, where tau makes the weights
sum to one (algorithm 2).
"""

from jaxtyping import Bool, Float
from torch import Tensor

from ablate.model.normalizer.threshold import Threshold


class Entmax15(Threshold):
    power = 2

    def tau(
        self, ordered: Float[Tensor, "*bhi j"], rank: Float[Tensor, " j"]
    ) -> tuple[Float[Tensor, "*bhi j"], Bool[Tensor, "*bhi j"]]:
        """The root of sum (z - tau)^2 = 1, from the mean of the scores that are kept and their
        squared deviations."""
        mean = ordered.cumsum(-1) / rank
        deviations = (ordered**2).cumsum(-1) - rank * mean**2
        thresholds = mean - ((1 - deviations) / rank).clamp(min=0).sqrt()
        return thresholds, thresholds <= ordered
