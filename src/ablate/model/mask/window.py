"""Window: a query at i attends to the keys at |i - j| < size, in a decoder only those at j <= i.

On an image, to the patches within a square: those whose row and column both differ by less than
`size`, k = 2 size - 1 patches per side, the local self-attention of Ramachandran et al. 2019,
"Stand-alone self-attention in vision models", section 3.1, https://arxiv.org/abs/1906.05909. A
token outside the image, such as a class token, attends to all, and all to it: the global attention
of Beltagy et al. 2020, "Longformer", section 3.1, https://arxiv.org/abs/2004.05150, whose sliding
window w on text counts both sides, w = 2 (size - 1). The causal window is that of Jiang et al.
2023, "Mistral 7B", section 2, https://arxiv.org/abs/2310.06825.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from jaxtyping import Bool, Int
from torch import Tensor

from ablate.config.conflicts import Conflict
from ablate.config.rules import Count
from ablate.model.mask import Mask


class Window(Mask):
    """The `size` nearest positions, or rows and columns, on a side, the query's own included."""

    conflicts = (
        Conflict(
            lambda c: c.trait("model", "has_grid") and c("model.mask.size") >= c.across > 0,
            "model.mask.size={model.mask.size} lets each of the {:across} x {:across} patches of"
            " model.patch={model.patch} on data={data} see all; set less than {:across}, or"
            " model.mask=none",
        ),
    )

    needs = frozenset({"range"})
    needs_if: ClassVar[Mapping[str, str]] = {"model.patch": "mask"}

    def __init__(self, *, size: Count, **layout: Any) -> None:
        super().__init__(**layout)
        self.size = size
        if self.grid is not None:
            self.needs = Mask.needs

    @property
    def look_ahead(self) -> bool:
        return not self.causal and (self.size > 1 or self.extra > 0)

    def allowed(self, i: Int[Tensor, " i"], j: Int[Tensor, " j"]) -> Bool[Tensor, "i j"]:
        if self.grid is None:
            return self._near(i, j)
        columns, patch_i, patch_j = self.grid[1], i - self.extra, j - self.extra
        near = self._near(patch_i // columns, patch_j // columns)
        near &= self._near(patch_i % columns, patch_j % columns)
        return near | (patch_i < 0)[:, None] | (patch_j < 0)

    def _near(self, i: Int[Tensor, " i"], j: Int[Tensor, " j"]) -> Bool[Tensor, "i j"]:
        back = i[:, None] - j
        near = back < self.size
        return near & (back >= 0 if self.causal else back > -self.size)

    def between(
        self, i: Int[Tensor, " i"], keys: int
    ) -> tuple[Int[Tensor, " i"], Int[Tensor, " i"]]:
        return i - self.size + 1, i + (1 if self.causal else self.size)

    def span(self, first: int, last: int, keys: int) -> tuple[int, int]:
        if self.grid is not None:
            return self._rows(first, last, keys)
        ahead = 0 if self.causal else self.size - 1
        return min(max(first - self.size + 1, 0), keys), min(last + ahead, keys)

    def _rows(self, first: int, last: int, keys: int) -> tuple[int, int]:
        """The span in whole rows of the image."""
        assert self.grid is not None
        columns = self.grid[1]
        above = (first - self.extra) // columns - self.size + 1
        below = (last - 1 - self.extra) // columns + self.size
        begin = 0 if self.extra else max(above * columns, 0)
        end = keys if first < self.extra else below * columns + self.extra
        return min(begin, keys), min(end, keys)
