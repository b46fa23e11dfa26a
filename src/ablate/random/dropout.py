"""Dropout, Srivastava et al. 2014, https://jmlr.org/papers/v15/srivastava14a.html, and stochastic
depth, Huang et al. 2016, https://arxiv.org/abs/1603.09382.

Unlike torch.nn.Dropout they drop the same units regardless of the other random numbers of the
model: see draws.py.
"""

import torch
from torch import Tensor

from ablate.random.draws import Source, Stream, draw, draw_at, drawn_at

BITS = 16  # random bits per unit: the rate is rounded to 1 / 2^16


def dropout(x: Tensor, rate: float, source: Source) -> Tensor:
    """Zero each unit with probability `rate`, and scale the others by 1 / (1 - rate).

    x: examples first, columns last; between them rows, or heads and rows.
    """
    if rate == 0:
        return x
    *leading, columns = x.shape if x.dim() else (1,)
    examples, rows = (leading[0] if leading else 1), (leading[-1] if len(leading) > 1 else 1)
    heads = leading[1] if len(leading) > 2 else 1
    drawn = draw(source.key, examples, heads, rows, columns, source.row, source.column)
    return x * scales(drawn, rate, x).view(x.shape)


def dropout_at(x: Tensor, rate: float, source: Source, rows: Tensor, columns: Tensor) -> Tensor:
    """`dropout` of the entries of one example at these rows and columns: e heads."""
    if rate == 0:
        return x
    drawing = drawn_at if torch.compiler.is_compiling() else draw_at
    return x * scales(drawing(source.key, rows, columns, x.shape[1]), rate, x)


def scales(drawn: Tensor, rate: float, x: Tensor) -> Tensor:
    """The factors of the units, 0 or 1 / (1 - rate), in the dtype of x."""
    mask = (drawn >= lowest(rate)).to(x.dtype)
    return mask.div_(1 - rate) if rate < 1 else mask.zero_()


def lowest(rate: float) -> int:
    """The lowest int16 number that keeps a unit."""
    return round(rate * 2**BITS) - 2 ** (BITS - 1)


class Dropout(Stream):
    """Dropout in training; the identity in evaluation."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def extra_repr(self) -> str:
        return f"p={self.p}"

    def forward(self, x: Tensor, use: int = 0, row: int = 0) -> Tensor:
        """use: counts the uses of this module in a training step; row: the first row of x."""
        if not (self.training and self.p):
            return x
        return dropout(x, self.p, Source(self.key(x, use), row))


class StochasticDepth(Dropout):
    """Zero the whole example, b i d, with the given probability."""

    def forward(self, x: Tensor, use: int = 0, row: int = 0) -> Tensor:
        return x * super().forward(x.new_ones(len(x), 1, 1), use) if self.p else x
