"""Relative in two dimensions: the score gains q . [r[row offset]; c[column offset]] / sqrt(k).

Ramachandran et al. 2019, "Stand-alone self-attention in vision models", section 3.1, equation 3,
https://arxiv.org/abs/1906.05909: half of the head's width is for the row, half for the column.
Their scores have no 1 / sqrt(k); here the sum is added to the key inside the scaled product, as
pos_enc=relative does in one dimension (Shaw et al. 2018, equation 5), and nothing to the values.
The tables are shared by the heads and not by the layers and drawn with Xavier's variance, as there.
They hold every offset of the picture, which leaves those beyond a window of model.mask unused.
A token outside the picture, such as a class token, has no offset: to and from it nothing is added.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn

from ablate.errors import UserError
from ablate.pos_enc import PosEnc, require_grid


class Relative2d(PosEnc):
    """A vector learned for each offset between rows, and for each between columns."""

    reads_query = True

    def __init__(self, **sizes: Any) -> None:
        super().__init__(**sizes)
        self.rows, self.columns = require_grid("relative_2d", self.grid)
        if self.head_dim % 2:
            raise UserError(
                f"pos_enc=relative_2d halves the head width model.dim / model.heads, which must be"
                f" even, not {self.head_dim}"
            )
        self.row_tables = self.tables(self.rows)
        self.column_tables = self.tables(self.columns)
        self.reset_parameters()

    def tables(self, count: int) -> nn.ParameterList:
        """One per layer, `r k/2`: its row r is for the offset r - count + 1."""
        shape = 2 * count - 1, self.head_dim // 2
        return nn.ParameterList(torch.empty(shape) for _ in range(self.depth))

    def reset_parameters(self) -> None:
        for table in self.parameters():
            nn.init.xavier_uniform_(table)

    def bias(self, q: Tensor, i: Tensor, j: Tensor, layer: int) -> Tensor:
        i, j = self.patches(i), self.patches(j)
        of_rows, of_columns = q.chunk(2, dim=-1)
        row = gather(of_rows, self.row_tables[layer], i // self.columns, j // self.columns)
        column = gather(of_columns, self.column_tables[layer], i % self.columns, j % self.columns)
        outside = (i < 0)[:, None] | (j < 0)
        return ((row + column) / math.sqrt(self.head_dim)).masked_fill(outside, 0.0)

    def patches(self, positions: Tensor) -> Tensor:
        """Numbers of the patches, row by row; negative outside the picture."""
        return positions - self.extra


def gather(q: Tensor, table: Tensor, i: Tensor, j: Tensor) -> Tensor:
    """q . table[j - i], b h i j; i, j: rows or columns of the patches."""
    # Against the few offsets first, then spread over the keys, as in pos_enc=relative. What is
    # outside the picture reads anything: it is set to zero afterwards.
    per_offset = q @ table.to(q.dtype).mT
    middle = len(table) // 2
    offset = (j - i[:, None]).clamp(-middle, middle) + middle
    return per_offset.gather(-1, offset.expand(*q.shape[:2], -1, -1))
