"""Learned in two dimensions: x -> x + [r[row]; c[column]], a vector learned per row and column.

Dosovitskiy et al. 2021, "An image is worth 16x16 words", appendix D.4,
https://arxiv.org/abs/2010.11929. Half of the width is for the row (the paper's Y-embedding), half
for the column (its X-embedding). Initialized from a normal distribution of standard deviation 0.02,
as its one-dimensional table.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ablate.config.conflicts import Conflict
from ablate.pos_enc import GridPosEnc


class Learned2d(GridPosEnc):
    """A table for the rows and one for the columns of an image's patches, added to the input."""

    conflicts = (
        Conflict(
            lambda c: c("model.dim") % 2 != 0,
            "pos_enc=learned_2d needs an even model.dim, not {model.dim}",
        ),
    )

    option = "learned_2d"

    def __init__(self, **sizes: Any) -> None:
        super().__init__(**sizes)
        assert self.dim % 2 == 0
        self.row_table = nn.Parameter(torch.empty(self.rows, self.dim // 2))
        self.column_table = nn.Parameter(torch.empty(self.columns, self.dim // 2))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.row_table, std=0.02)
        nn.init.normal_(self.column_table, std=0.02)

    def axes(
        self, x: Float[Tensor, "b i d"]
    ) -> tuple[Float[Tensor, "{self.rows} d//2"], Float[Tensor, "{self.columns} d//2"]]:
        return self.row_table.to(x.dtype), self.column_table.to(x.dtype)
