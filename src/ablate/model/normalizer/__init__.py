"""Normalizers: how the scores of a query become the weights of its keys.

One class per file; this is what they share. Letters: b batch, h heads, i query, j key.
"""

from typing import ClassVar

import torch
from torch import Tensor


class Normalizer:
    """Without parameters. A subclass implements `normalize`."""

    # Whether it is the softmax, which fused kernels have inside.
    fused: ClassVar[bool] = False
    # Whether it draws random numbers in training.
    samples: ClassVar[bool] = False

    def __call__(
        self, scores: Tensor, allowed: Tensor | None = None, *, training: bool = False
    ) -> Tensor:
        """Scores b h i j, and what may be seen (True; None: everything) -> weights b h i j.

        Zeros where a query may see nothing: a finite fill keeps the gradient of such a row finite,
        where -inf would give NaN.
        """
        if not scores.shape[-1]:  # as for a query whose whole window lies beyond the keys
            return scores
        if allowed is None:
            return self.normalize(scores, scores.shape[-1], training=training)
        seen = allowed.sum(-1, keepdim=True)
        scores = scores.masked_fill(~allowed, torch.finfo(scores.dtype).min)
        return self.normalize(scores, seen, training=training).masked_fill(~allowed, 0.0)

    def normalize(self, scores: Tensor, seen: Tensor | int, *, training: bool) -> Tensor:
        """b h i j -> b h i j, the same type of numbers. What may not be seen has the lowest score
        there is; seen: how many keys each query may see, b h i 1 or fewer axes.
        """
        raise NotImplementedError
