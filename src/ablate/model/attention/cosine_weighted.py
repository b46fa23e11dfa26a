"""Cosine with learned weights of features: score(q, k) = sqrt(k) sum_c s_c^2 q_c k_c / (|q| |k|).

nGPT: Loshchilov et al. 2024, section 2.3.2, equations 15 and 16,
https://arxiv.org/abs/2410.01131: queries and keys of length 1, each times s_qk, are compared with a
softmax scale of sqrt(k), not 1 / sqrt(k), so that scores have a variance of about 1.
"""

from typing import Any

from jaxtyping import Float
from torch import Tensor

from ablate.model.attention import Lowered
from ablate.model.attention.cosine import OfDirections, scaled
from ablate.model.layers.scale import Scale


class CosineWeighted(OfDirections):
    """s: of every feature of every head, at first 1."""

    equal_widths = "cosine_weighted"

    def __init__(self, **sizes: Any) -> None:
        super().__init__(**sizes)
        width = self.heads * self.query_dim
        self.scale = Scale(width, start=width**-0.5)

    def lower(self, q: Float[Tensor, "b h i k"], k: Float[Tensor, "b g j k"]) -> Lowered:
        # Both factors of the pair are on the query, whose heads may be more.
        squared = self.scale().square().view(self.heads, 1, -1)
        return scaled(q) * squared, scaled(k), self.query_dim**0.5
