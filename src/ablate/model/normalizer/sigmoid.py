"""Sigmoid: w = 1 / (1 + exp(-(s - log n))) for each key separately; weights need not sum to one.

Ramapuram et al. 2024, "Theory, analysis, and best practices for sigmoid self-attention",
https://arxiv.org/abs/2409.04431, with their bias -log n, where n counts the keys that the query may
attend to: at initialization the weights sum to about one.
"""

import math
from typing import ClassVar

from jaxtyping import Float, Int
from torch import Tensor

from ablate.model.normalizer import Normalizer


class Sigmoid(Normalizer):
    shares: ClassVar[bool] = False

    def normalize(
        self, scores: Float[Tensor, "*bhi j"], seen: Int[Tensor, "*#bhi 1"] | int, *, training: bool
    ) -> Float[Tensor, "*bhi j"]:
        if isinstance(seen, int):
            return (scores - math.log(seen)).sigmoid()
        return (scores - seen.clamp(min=1).to(scores.dtype).log()).sigmoid()
