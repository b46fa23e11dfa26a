"""Texts of any length in pieces: cut between characters that no tokenizer joins, or in lines."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, wait
from itertools import islice
from threading import Thread
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from ablate.machine.terminal.bar import bar

Unit = Literal["line", "document"]
Pieces = Callable[[], Iterator[str]]  # begins again with every call
Result = TypeVar("Result")
Item = TypeVar("Item")

PIECE = 2**16  # characters
LONGEST = 2**20  # characters without a blank, which byte pair encoding merges as one word
BATCH = 16  # pieces that are encoded at a time


def recut(pieces: Iterable[str], size: int = PIECE) -> Iterator[str]:
    """The same text in pieces of about `size` characters, to tokenize one by one.

    A piece ends before a space or newline that follows another character: there the pre-tokenizers
    of GPT-2 and later models divide, regardless of the next characters, so the tokens are those of
    the whole text. A run of `LONGEST` characters without such a place is cut at its end.
    """
    rest, searched = "", 0
    for piece in pieces:
        rest += piece
        while len(rest) >= max(size, searched + 1):
            if not (at := _boundary(rest, searched)) and len(rest) >= LONGEST:
                at = LONGEST
            if not at:
                searched = len(rest)
                break
            yield rest[:at]
            rest, searched = rest[at:], 0
    if rest:
        yield rest


def _boundary(text: str, start: int) -> int:
    """The last position, at most `LONGEST`, of a space or newline after another character; 0 if
    there is none from `start` on."""
    for blank in " \n":
        end = LONGEST
        while (at := text.rfind(blank, max(1, start), end)) > 0:
            if not text[at - 1].isspace():
                return at
            end = at
    return 0


def between(pieces: Iterable[str], start: int, stop: int) -> Iterator[str]:
    """The characters from `start` up to `stop`."""
    seen = 0
    for piece in pieces:
        if part := piece[max(0, start - seen) : max(0, stop - seen)]:
            yield part
        seen += len(piece)
        if seen >= stop:
            return


def evenly(pieces: Pieces, most: int) -> tuple[Iterator[str], int]:
    """One in so many pieces (`recut`), spread evenly over the text, that they have about `most`
    characters or fewer; and that number, 1 for the whole text."""
    every = max(1, -(-sum(map(len, pieces())) // most))
    return islice(recut(pieces()), 0, None, every), every


def batches(items: Iterable[Item], size: int = BATCH) -> Iterator[list[Item]]:
    iterator = iter(items)
    while batch := list(islice(iterator, size)):
        yield batch


def characters(pieces: Iterable[str], what: str) -> Iterator[str]:
    """The pieces, whose characters are counted in a bar."""
    with bar(what, unit=" characters", unit_scale=True) as shown:
        for piece in pieces:
            yield piece
            shown.update(len(piece))


def interruptible(function: Callable[[], Result], what: str) -> Result:
    """The result of a long call into native code, during which signals are handled; with a line
    that shows how long it has taken."""
    result: Future[Result] = Future()

    def call() -> None:
        try:
            result.set_result(function())
        except BaseException as error:
            result.set_exception(error)

    Thread(target=call, daemon=True).start()
    with bar(what, bar_format="{desc}: {elapsed}") as shown:
        while wait([result], 0.2).not_done:
            shown.update()
    return result.result()


class Units:
    """The lines or documents of a text in an order that is shuffled once, the same for every seed.

    A document ends at blank lines, which are left out; one separates documents. The text is
    stored once, as bytes, with two numbers for every unit.
    """

    def __init__(self, text: bytes | bytearray, unit: Unit) -> None:
        clean = re.sub(rb"(?m)^[ \t]+$", b"", text.replace(b"\r\n", b"\n"))
        if not clean.endswith(b"\n"):
            clean += b"\n"
        self.raw = np.frombuffer(clean, np.uint8)
        ends = np.flatnonzero(self.raw == ord("\n")) + 1
        starts = np.concatenate([[0], ends[:-1]])
        if unit == "line":
            full = ends - starts > 1
            starts, ends = starts[full], ends[full]
        else:
            starts, ends = _documents(starts, ends)
        order = np.random.default_rng(0).permutation(len(starts))
        self.starts, self.ends = starts[order], ends[order]
        self.between = b"\n" * (unit == "document")

    def __len__(self) -> int:
        return len(self.starts)

    def shared(self, cut: int) -> int:
        """The number of units from number `cut` on that are also among those before."""
        held = Counter(hash(self._text(n)) for n in range(cut, len(self)))
        return sum(held.pop(hash(self._text(n)), 0) for n in range(cut))

    def _text(self, n: int) -> bytes:
        return self.raw[self.starts[n] : self.ends[n]].tobytes()

    def pieces(self, first: int, last: int) -> Iterator[str]:
        """The text of the units from number `first` up to `last`."""
        for n in range(first, last):
            yield (self._text(n) + self.between).decode()


def _documents(
    starts: NDArray[np.int64], ends: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The spans of runs of lines that are not blank."""
    full = np.concatenate([[False], ends - starts > 1, [False]])
    first, last = full[1:-1] & ~full[:-2], full[1:-1] & ~full[2:]
    return starts[first], ends[last]
