"""Prefix: all positions attend to the first `size` ones; the rest is causal.

Raffel et al. 2020, "Exploring the limits of transfer learning with a unified text-to-text
transformer", section 3.2.1 (prefix LM), https://arxiv.org/abs/1910.10683; Dong et al. 2019,
"Unified language model pre-training", section 2.3 (sequence-to-sequence),
https://arxiv.org/abs/1905.03197.
"""

from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from ablate.config.conflicts import Conflict
from ablate.config.rules import Count
from ablate.model.mask import Mask


class Prefix(Mask):
    """A query at i attends to the keys at j <= i and those at j < size."""

    conflicts = (
        Conflict(
            lambda c: c("data.documents") != "ignore",
            "model.mask={model.mask} lets all positions read the first of a row, and documents"
            " begin anywhere in a row; set data.documents=ignore",
        ),
    )
    needs = frozenset({"range"})

    def __init__(self, *, size: Count, **layout: Any) -> None:
        super().__init__(**layout)
        self.size = size

    @property
    def look_ahead(self) -> bool:
        return self.size > 1

    @property
    def leaks_targets(self) -> bool:
        return self.size > self.source + 1

    @property
    def caches(self) -> bool:
        return self.size <= max(self.source, 1)

    def allowed(self, i: Int[Tensor, " i"], j: Int[Tensor, " j"]) -> Bool[Tensor, "i j"]:
        return (j <= i[:, None]) | (j < self.size)

    def between(
        self, i: Int[Tensor, " i"], keys: int
    ) -> tuple[Int[Tensor, " i"], Int[Tensor, " i"]]:
        return torch.zeros_like(i), (i + 1).clamp(min=self.size)

    def span(self, first: int, last: int, keys: int) -> tuple[int, int]:
        return 0, min(max(last, self.size), keys)
