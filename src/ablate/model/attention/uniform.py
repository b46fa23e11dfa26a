"""Uniform: score = 0, so every position gets the same weight.

The ablated score: attention as an average over the allowed keys, without queries. You et al.
2020, "Hard-coded Gaussian attention for neural machine translation", section 3,
https://arxiv.org/abs/2005.00742, is one study of how far attention goes without learned weights.
"""

from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from ablate.model.attention import Lowered, Score

# The narrowest head that every fast kernel takes.
WIDTH = 8


class Uniform(Score):
    """No parameters and no projections of queries and keys."""

    query: ClassVar[bool] = False
    key: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset({"dot_product"})

    def forward(
        self, q: Float[Tensor, "b h i k"], k: Float[Tensor, "b h j l"]
    ) -> Float[Tensor, "b h i j"]:
        return q.new_zeros(*q.shape[:3], k.shape[2])

    def lower(self, q: Float[Tensor, "b h i k"], k: Float[Tensor, "b g j m"]) -> Lowered:
        return q.new_zeros(*q.shape[:3], WIDTH), k.new_zeros(*k.shape[:3], WIDTH), 1.0
