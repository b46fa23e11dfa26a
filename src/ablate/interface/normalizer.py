"""The base of normalizers: how the scores of a query become attention weights.

Letters: b batch, h heads, i query, j key.
"""

from typing import ClassVar

import torch
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
        self, scores: Tensor, allowed: Tensor | None = None, *, training: bool = False
    ) -> Tensor:
        """Scores b h i j, and the mask (True = may attend; None: no mask) -> weights b h i j.

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

    def perturb(self, scores: Tensor, source: Source) -> Tensor:
        """Add noise to the scores b h i j in training, if it `samples`."""
        raise NotImplementedError

    def normalize(self, scores: Tensor, seen: Tensor | int, *, training: bool) -> Tensor:
        """b h i j -> b h i j, of the same dtype. Masked scores are the lowest finite number; seen:
        how many keys each query may attend to, b h i 1 or fewer axes.
        """
        raise NotImplementedError
