"""Relative in two dimensions: the score gains q . [r[row offset]; c[column offset]] / sqrt(k).

Ramachandran et al. 2019, "Stand-alone self-attention in vision models", section 3.1, equation 3,
https://arxiv.org/abs/1906.05909: half of the head's width is for the row, half for the column.
Their scores have no 1 / sqrt(k); here the sum is added to the key inside the scaled product, as
pos_enc=relative does in one dimension (Shaw et al. 2018, equation 5), and nothing to the values.
The tables are shared by the heads, not by the layers, and initialized with Glorot's distribution,
as there. They contain every offset of the image; those beyond a window of model.mask are unused.
A token outside the image, such as a class token, has no offset: to and from it nothing is added.
"""

import math
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import pad

from ablate.config.conflicts import Conflict
from ablate.pos_enc import NEEDS_GRID, PosEnc


class Relative2d(PosEnc):
    """A vector learned for each offset between rows, and for each between columns."""

    needs = frozenset({"bias"})
    conflicts = (
        Conflict(
            lambda c: not c.declares("model.attention", "query"),
            "pos_enc=relative_2d needs a score that reads the query, and"
            " model.attention={model.attention} does not",
        ),
        Conflict(
            lambda c: (
                c("model.dim") % c("model.heads") == 0
                and c("model.dim") // c("model.heads") % 2 == 1
            ),
            "pos_enc=relative_2d splits each head between rows and columns: the head width must"
            " be even; here it is model.dim={model.dim} / model.heads={model.heads}",
        ),
        NEEDS_GRID,
    )

    def __init__(self, **sizes: Any) -> None:
        super().__init__(**sizes)
        assert self.grid is not None
        assert self.head_dim % 2 == 0
        self.rows, self.columns = self.grid
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

    def bias(
        self, q: Float[Tensor, "b h i k"], i: Int[Tensor, " i"], j: Int[Tensor, " j"], layer: int
    ) -> Float[Tensor, "#b #h #i j"]:
        patch = i - self.extra
        of_rows, of_columns = self._inside(q, patch).chunk(2, dim=-1)
        patch = patch.clamp(min=0)
        # Multiplied by the offsets first, then gathered for rows and for columns, and only then
        # broadcast to both: never `b h i j k`, and no gather of `b h i j`, whose backward is slow.
        row = spread(of_rows, self.row_tables[layer], patch // self.columns)
        column = spread(of_columns, self.column_tables[layer], patch % self.columns)
        to_all = pad((row[..., None] + column[..., None, :]).flatten(-2), (self.extra, 0))
        return to_all if len(j) == to_all.shape[-1] else to_all[..., j]

    def _inside(
        self, q: Float[Tensor, "b h i k"], patch: Int[Tensor, " i"]
    ) -> Float[Tensor, "b h i k"]:
        """The queries over sqrt(k); zero outside the image."""
        scaled = q / math.sqrt(self.head_dim)
        return scaled.masked_fill((patch < 0)[:, None], 0.0) if self.extra else scaled


def spread(
    q: Float[Tensor, "b h i k"], table: Float[Tensor, "offsets k"], i: Int[Tensor, " i"]
) -> Float[Tensor, "b h i r"]:
    """For every row or column r; i: the row or column of each query."""
    count = (len(table) + 1) // 2
    offset = torch.arange(count, device=i.device) - i[:, None] + count - 1
    per_offset = q @ table.to(q.dtype).mT
    return per_offset.gather(-1, offset.expand(*q.shape[:2], -1, -1))
