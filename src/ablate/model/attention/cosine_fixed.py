"""Cosine with a fixed factor: score(q, k) = t q . k / (|q| |k|).

The query-key normalization without parameters of modded-nanogpt (Jordan et al. 2024,
https://github.com/KellerJordan/modded-nanogpt: RMS norm without a gain at head width 128, scores
times 0.12, so t = 0.12 * 128) and nanochat (t = 1.44 sqrt(128)). model.attention=cosine learns t.
"""

from typing import Any

from jaxtyping import Float
from torch import Tensor

from ablate.config.rules import Positive
from ablate.model.attention import Lowered
from ablate.model.attention.cosine import OfDirections, scaled


class CosineFixed(OfDirections):
    """Cosine similarity times `factor`; no parameters."""

    equal_widths = "cosine_fixed"

    def __init__(self, *, factor: Positive, **sizes: Any) -> None:
        super().__init__(**sizes)
        self.factor = factor

    def lower(self, q: Float[Tensor, "b h i k"], k: Float[Tensor, "b g j k"]) -> Lowered:
        return scaled(q), scaled(k), self.factor
