"""Scaled dot product: score(q, k) = q . k / sqrt(width).

Vaswani et al. 2017, "Attention is all you need", section 3.2.1, https://arxiv.org/abs/1706.03762.
The division keeps the variance of the scores at 1 for queries and keys of unit variance and any
width. No parameters.
"""

import math
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from ablate.model.attention import Lowered, Score


class ScaledDot(Score):
    """The inner product of queries and keys of equal width, over the square root of that width."""

    needs: ClassVar[frozenset[str]] = frozenset({"dot_product"})
    equal_widths = "scaled_dot"

    def forward(
        self, q: Float[Tensor, "b h i k"], k: Float[Tensor, "b h j k"]
    ) -> Float[Tensor, "b h i j"]:
        return q @ k.mT / math.sqrt(self.query_dim)

    def lower(self, q: Float[Tensor, "b h i k"], k: Float[Tensor, "b g j k"]) -> Lowered:
        return q, k, 1 / math.sqrt(self.query_dim)
