"""How a sequence of documents becomes rows of equal length.

ignore: rows begin anywhere, and attention crosses documents. mask: the same rows, but attention
stays within documents. align: rows begin with a document, or with the rest of one that the row
before cut. pack: a document that fits into a row is not cut (best-fit packing: Ding et al. 2024,
"Fewer truncations improve language modeling", https://arxiv.org/abs/2404.10830).
"""

from collections.abc import Callable
from typing import Literal

import numpy as np
import torch
from jaxtyping import Int
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from ablate.data import IGNORED
from ablate.data.loader import Batch, Request

Layout = Literal["ignore", "mask", "align", "pack"]
Positions = NDArray[np.int64]


class DocumentRows(Dataset[Batch]):
    """Rows of `length` tokens with their next tokens as targets, and the documents they are in.

    The first token of a document is never a target. read: the tokens at positions of any shape.
    count: of tokens. first: the position of the first token of each document, rising from 0.
    restart: batches have the positions of tokens within their documents.
    """

    def __init__(
        self,
        read: Callable[[Tensor], Tensor],
        count: int,
        first: Positions,
        length: int,
        layout: Layout,
        *,
        restart: bool = False,
    ) -> None:
        assert not first[0]
        self.read, self.count, self.first = read, count, first
        self.length, self.layout, self.restart = length, layout, restart
        sizes = np.diff(first, append=count)
        if layout == "align":
            self.ends = (-(-(sizes - 1) // length)).cumsum()
        elif layout == "pack":
            self.pieces, self.rows = packed(first, sizes - 1, length)

    def __len__(self) -> int:
        if self.layout == "align":
            return int(self.ends[-1])
        return len(self.rows) - 1 if self.layout == "pack" else self.count - self.length

    def __getitem__(self, request: Request) -> Batch:
        return self.batch(self.places(request.indices.numpy()))

    def places(self, rows: Positions) -> Positions:
        """The position of each token of some rows, b -> b length; -1: padding."""
        if self.layout == "pack":
            return np.stack([self._packed_row(row) for row in rows])
        starts = rows
        if self.layout == "align":
            document = self.ends.searchsorted(rows, side="right")
            earlier = np.where(document, self.ends[document - 1], 0)
            starts = self.first[document] + self.length * (rows - earlier)
        return self.following(starts)

    def following(self, starts: Positions) -> Positions:
        """The positions from some on; those without a next token are padding."""
        places = starts[:, None] + np.arange(self.length)
        return np.where(places < self.count - 1, places, -1)

    def batch(self, places: Positions) -> Batch:
        real = places >= 0
        document = self.first.searchsorted(places, side="right")
        following = np.where(real, places + 1, 0)
        counts = self.first.searchsorted(following, side="right") == document  # not at padding
        tokens = self.read(torch.from_numpy(np.where(real, places, 0))).long()
        targets = self.read(torch.from_numpy(following)).long()
        found = {
            "tokens": tokens.where(torch.from_numpy(real), 0),
            "targets": targets.where(torch.from_numpy(counts), IGNORED),
        }
        if self.layout == "ignore":
            return found
        begins = np.ones_like(real)
        begins[:, 1:] = (document[:, 1:] != document[:, :-1]) | (np.diff(places) != 1)
        found["documents"] = torch.from_numpy(begins.cumsum(1))
        if self.restart:
            row = np.arange(self.length)
            within = row - np.maximum.accumulate(row * begins, axis=1)
            found["document_positions"] = torch.from_numpy(within)
        return found

    def _packed_row(self, row: int) -> Positions:
        places = np.full(self.length, -1)
        end = 0
        for start, size in self.pieces[self.rows[row] : self.rows[row + 1]]:
            places[end : end + size] = np.arange(start, start + size)
            end += size
        return places


class ConsecutiveRows(DocumentRows):
    """Every token once, row after row, for any layout of training: all layouts are measured by the
    same targets."""

    def __len__(self) -> int:
        return -(-(self.count - 1) // self.length)

    def places(self, rows: Positions) -> Positions:
        return self.following(self.length * rows)


def packed(
    first: Positions, sizes: Positions, length: int
) -> tuple[Int[np.ndarray, "pieces 2"], Positions]:
    """The start and the size of pieces in the order of their rows, and the first piece of each row.

    Documents longer than a row are cut into rows and a rest; the longest pieces come first, each
    into the row with the least room that it fits into. sizes: of documents, without the last
    token, which has no target.
    """
    counts = -(-sizes // length)
    owner = np.repeat(np.arange(len(first)), counts)
    number = np.arange(len(owner)) - np.repeat(counts.cumsum() - counts, counts)
    starts = first[owner] + number * length
    lengths = np.minimum(sizes[owner] - number * length, length)
    order = (-lengths).argsort(kind="stable")
    row_of = np.empty(len(order), np.int64)
    with_room: dict[int, list[int]] = {}
    rooms = rows = 0  # bit r of rooms: some row has room for exactly r
    for piece, size in zip(order.tolist(), lengths[order].tolist(), strict=True):
        if fitting := rooms >> size:
            room = size + (fitting & -fitting).bit_length() - 1
            row = with_room[room].pop()
            rooms ^= (not with_room[room]) << room
        else:
            room, row, rows = length, rows, rows + 1
        row_of[piece] = row
        if room > size:
            with_room.setdefault(room - size, []).append(row)
            rooms |= 1 << (room - size)
    by_row = row_of.argsort(kind="stable")
    pieces = np.stack([starts, lengths], axis=1)[by_row]
    return pieces, row_of[by_row].searchsorted(np.arange(rows + 1))


def documents(batch: Batch) -> dict[str, Tensor]:
    """The arguments of a model that stays within the documents of a row."""
    names = {"documents": "documents", "positions": "document_positions"}
    return {name: batch[key] for name, key in names.items() if key in batch}
