"""Softmax: w = exp(s) / sum exp(s), all weights positive: Bahdanau et al. 2015, section 3.1.

https://arxiv.org/abs/1409.0473.
"""

from typing import ClassVar

from jaxtyping import Float, Int
from torch import Tensor

from ablate.model.normalizer import Normalizer


class Softmax(Normalizer):
    needs: ClassVar[frozenset[str]] = frozenset()

    def normalize(
        self, scores: Float[Tensor, "*bhi j"], seen: Int[Tensor, "*#bhi 1"] | int, *, training: bool
    ) -> Float[Tensor, "*bhi j"]:
        return scores.softmax(-1)
