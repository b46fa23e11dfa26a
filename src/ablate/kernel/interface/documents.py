"""The documents in a row of tokens, which attention, states and convolutions do not cross."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor
from torch.nn.functional import pad


class Documents(NamedTuple):
    """number: of the document at each position of a row, which never falls. position: within the
    document, from 0."""

    number: Int[Tensor, "b n"]
    position: Int[Tensor, "b n"]

    @classmethod
    def numbered(cls, number: Int[Tensor, "b n"]) -> Documents:
        first = torch.ones_like(number, dtype=torch.bool)
        first[:, 1:] = number[:, 1:] != number[:, :-1]
        row = torch.arange(number.shape[1], device=number.device)
        return cls(number, row - (row * first).cummax(1).values)

    def same(self, i: Int[Tensor, " i"], j: Int[Tensor, " j"]) -> Bool[Tensor, "b 1 i j"]:
        """Whether the positions i and j of a row are in one document."""
        return self.number[:, None, i, None] == self.number[:, None, None, j]

    def ranges(self) -> tuple[Int[Tensor, "b n"], Int[Tensor, "b n"]]:
        """For each position the first of its document, and one past the last."""
        row = torch.arange(self.number.shape[1], device=self.number.device)
        beyond = torch.searchsorted(self.number.contiguous(), self.number.contiguous(), right=True)
        return row - self.position, beyond

    def after(self, count: int) -> Documents:
        """The same after a document of `count` positions."""
        return Documents.numbered(pad(self.number, (count, 0), value=-1)) if count else self

    def near(self, before: int, after: int = 0) -> Bool[Tensor, "b n {before}+1+{after}"]:
        """Whether the positions around each one, `before` to `after`, are in its document."""
        around = pad(self.number, (before, after), value=-1)
        return around.unfold(1, before + 1 + after, 1) == self.number[..., None]
