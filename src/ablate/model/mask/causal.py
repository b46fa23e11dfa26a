"""Causal mask: a query at i attends to the keys at j <= i.

Vaswani et al. 2017, "Attention is all you need", section 3.2.3, https://arxiv.org/abs/1706.03762.
"""

from typing import ClassVar

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from ablate.model.mask import Mask


class Causal(Mask):
    """Masks the future: every key after the query."""

    needs = frozenset({"range"})
    lower_triangle: ClassVar[bool] = True
    looks_ahead = False

    def allowed(self, i: Int[Tensor, " i"], j: Int[Tensor, " j"]) -> Bool[Tensor, "i j"]:
        return j <= i[:, None]

    def between(
        self, i: Int[Tensor, " i"], keys: int
    ) -> tuple[Int[Tensor, " i"], Int[Tensor, " i"]]:
        return torch.zeros_like(i), i + 1

    def span(self, first: int, last: int, keys: int) -> tuple[int, int]:
        return 0, min(last, keys)
