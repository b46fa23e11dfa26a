"""No mask: every query attends to every key.

Devlin et al. 2018, "BERT", section 3, https://arxiv.org/abs/1810.04805, calls it bidirectional.
"""

from typing import ClassVar

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from ablate.model.mask import Mask


class NoMask(Mask):
    """The ablated mask; in a decoder it leaks the future."""

    restricts: ClassVar[bool] = False
    needs = frozenset({"range"})
    looks_ahead: ClassVar[bool | None] = True

    def allowed(self, i: Int[Tensor, " i"], j: Int[Tensor, " j"]) -> Bool[Tensor, "i j"]:
        return torch.ones(len(i), len(j), dtype=torch.bool, device=i.device)

    def between(
        self, i: Int[Tensor, " i"], keys: int
    ) -> tuple[Int[Tensor, " i"], Int[Tensor, " i"]]:
        return torch.zeros_like(i), torch.full_like(i, keys)

    def span(self, first: int, last: int, keys: int) -> tuple[int, int]:
        return 0, keys
