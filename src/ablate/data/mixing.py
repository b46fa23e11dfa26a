"""Batches of several sources with fixed shares, which may change with the phases of training.

Example n is a pure function of the seed and n. Number m of a source with share w is due at
(m + 1/2) / w, and examples are sorted by the time they are due: after any number of examples a
source has had its share, plus or minus one example for each two sources. A source draws its own
examples by its name and m: another source, exchanged for a third, does not change them.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ablate.data.loader import Order
from ablate.random.seeding import derive


class Examples(NamedTuple):
    """The source of each example, and its number among those of the source."""

    source: Int[np.ndarray, " n"]
    number: Int[np.ndarray, " n"]


def before(shares: Float[np.ndarray, " k"], count: int) -> Int[np.ndarray, " k"]:
    """How many of the first `count` examples are of each source. shares: with sum 1."""
    slack = len(shares)
    least, most = (
        np.floor(shares * max(count + off, 0) + 0.5).astype(np.int64) for off in (-slack, slack)
    )
    close = ordered(shares, least, most)
    return least + np.bincount(close.source[: count - least.sum()], minlength=len(shares))


def ordered(
    shares: Float[np.ndarray, " k"], least: Int[np.ndarray, " k"], most: Int[np.ndarray, " k"]
) -> Examples:
    """The examples of the numbers from `least` to before `most` of each source, as they are due."""
    source = np.repeat(np.arange(len(shares)), most - least)
    number = np.concatenate([np.arange(a, b) for a, b in zip(least, most, strict=True)])
    due = (number + 0.5) / shares[source]
    order = np.lexsort([source, due])
    return Examples(source[order], number[order])


class Mixed(Order):
    """Examples of several data sets, numbered one data set after another.

    counts: examples of each source. phases: the first step of each, rising from 0, and the weights
    of the sources in it, in any unit.
    """

    def __init__(
        self,
        counts: Mapping[str, int],
        phases: Mapping[int, Mapping[str, float]],
        batch_size: int,
        *,
        batches: int,
        seed: int,
    ) -> None:
        super().__init__(batches)
        self.counts, self.batch_size, self.seed = dict(counts), batch_size, seed
        weights = np.array([[of.get(name, 0.0) for name in counts] for of in phases.values()])
        self.shares = weights / weights.sum(1, keepdims=True)
        self.begins = [step * batch_size for step in phases]
        self.firsts = np.cumsum([0, *counts.values()])[:-1]

    def examples(self, first: int, last: int) -> Examples:
        """The examples from `first` to before `last`."""
        parts, earlier = [], np.zeros(len(self.counts), np.int64)
        ends = [*self.begins[1:], last]
        for begin, end, shares in zip(self.begins, ends, self.shares, strict=True):
            low, high = (before(shares, min(max(n, begin), end) - begin) for n in (first, last))
            found = ordered(shares, low, high)
            parts.append(Examples(found.source, found.number + earlier[found.source]))
            earlier = earlier + before(shares, max(end - begin, 0))
        return Examples(*(np.concatenate(part) for part in zip(*parts, strict=True)))

    def drawn(self, count: int) -> Int[np.ndarray, " k"]:
        """How many of the first `count` examples are of each source."""
        ends = [*self.begins[1:], count]
        sizes = [
            max(min(end, count) - begin, 0) for begin, end in zip(self.begins, ends, strict=True)
        ]
        return sum(map(before, self.shares, sizes), np.zeros(len(self.counts), np.int64))

    def of_epoch(self, epoch: int) -> Callable[[int], Tensor]:
        names, sizes = [*self.counts], [*self.counts.values()]

        def indices(number: int) -> Tensor:
            first = (epoch * self.batches + number) * self.batch_size
            drawn = self.examples(first, first + self.batch_size)
            of_source = [
                derive(self.seed, "order", names[k], m) % sizes[k]
                for k, m in zip(*(part.tolist() for part in drawn), strict=True)
            ]
            return torch.from_numpy(self.firsts[drawn.source] + of_source)

        return indices
