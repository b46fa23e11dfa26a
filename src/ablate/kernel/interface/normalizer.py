"""The base of normalizers: how the scores of a query become attention weights.

Letters: b batch, h heads, i query, j key. `*bhi`: any axes before that of the keys.
"""

from collections.abc import Iterable
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ablate.errors import UserError
from ablate.random.draws import Source


class Normalizer:
    """Without parameters. A subclass implements `normalize`."""

    # Features of the kernel: of the softmax none.
    needs: ClassVar[frozenset[str]] = frozenset({"normalizer"})
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

        A fully masked query gets zeros. The fill value is finite, because -inf would make the
        gradient of such a row NaN.
        """
        if not scores.shape[-1]:  # as for a query whose whole window lies beyond the keys
            return scores
        if allowed is None:
            return self._weights(scores, scores.shape[-1], training=training)
        seen = allowed.sum(-1, keepdim=True)
        scores = scores.masked_fill(~allowed, torch.finfo(scores.dtype).min)
        return self._weights(scores, seen, training=training).masked_fill(~allowed, 0.0)

    def _weights(
        self, scores: Float[Tensor, "*bhi j"], seen: Int[Tensor, "*#bhi 1"] | int, *, training: bool
    ) -> Float[Tensor, "*bhi j"]:
        weights = self.normalize(scores, seen, training=training)
        if weights.shape != scores.shape:  # it would be broadcast
            raise wrong_shape("model.normalizer", self, weights.shape, scores.shape)
        return weights

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


def wrong_shape(slot: str, part: object, given: Iterable[int], needed: Iterable[int]) -> UserError:
    """The error of a component that returns a shape other than that of the scores."""
    shapes = (" x ".join(map(str, shape)) for shape in (given, needed))
    return UserError(
        f"{slot}: {type(part).__name__} returns the shape {' instead of '.join(shapes)}"
        " (batch, heads, queries, keys)"
    )
