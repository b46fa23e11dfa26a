"""The base of normalizers: how the scores of a query become attention weights.

Letters: b batch, h heads, i query, j key. `*bhi`: any axes before that of the keys.
"""

from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ablate.random.draws import Source


class Normalizer:
    """Without parameters. A subclass implements `normalize`."""

    # Whether it is the softmax, which fused kernels implement.
    fused: ClassVar[bool] = False
    # Whether one more key takes a share of the weights of a query.
    shares: ClassVar[bool] = True
    # Whether it samples in training.
    samples: ClassVar[bool] = False

    def __call__(
        self,
        scores: Float[Tensor, "*bhi j"],
        allowed: Bool[Tensor, "*#bhi j"] | None = None,
        *,
        training: bool = False,
    ) -> Float[Tensor, "*bhi j"]:
        """Scores, and the mask (True = may attend; None: no mask) -> weights.

        A fully masked query gets zeros: a finite fill keeps the gradient of such a row finite,
        where -inf would give NaN.
        """
        if not scores.shape[-1]:  # as for a query whose whole window lies beyond the keys
            return scores
        if allowed is None:
            return self.normalize(scores, scores.shape[-1], training=training)
        seen = allowed.sum(-1, keepdim=True)
        scores = scores.masked_fill(~allowed, torch.finfo(scores.dtype).min)
        return self.normalize(scores, seen, training=training).masked_fill(~allowed, 0.0)

    def perturb(self, scores: Float[Tensor, "*bhi j"], source: Source) -> Float[Tensor, "*bhi j"]:
        """Add noise to the scores in training, if it `samples`."""
        raise NotImplementedError

    def normalize(
        self, scores: Float[Tensor, "*bhi j"], seen: Int[Tensor, "*#bhi 1"] | int, *, training: bool
    ) -> Float[Tensor, "*bhi j"]:
        """Weights of the dtype of the scores. Masked scores are the lowest finite number; seen: how
        many keys each query may attend to.
        """
        raise NotImplementedError
