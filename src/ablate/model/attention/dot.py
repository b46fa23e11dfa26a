"""Dot product: score(q, k) = q . k.

Luong et al. 2015, "Effective approaches to attention-based neural machine translation", section
3.1, https://arxiv.org/abs/1508.04025. The ablated form of the scaled dot product: its scores grow
with the width, so the softmax starts sharper. No parameters.
"""

from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from ablate.model.attention import Lowered, Score


class Dot(Score):
    """The inner product of queries and keys of equal width."""

    needs: ClassVar[frozenset[str]] = frozenset({"dot_product"})
    equal_widths = "dot"

    def forward(
        self, q: Float[Tensor, "b h i k"], k: Float[Tensor, "b h j k"]
    ) -> Float[Tensor, "b h i j"]:
        return q @ k.mT

    def lower(self, q: Float[Tensor, "b h i k"], k: Float[Tensor, "b g j k"]) -> Lowered:
        return q, k, 1.0
