"""Random numbers of training that depend on their use, not on earlier random numbers.

A number is a function of (seed, step, name of the module that draws, example, head, row, column).
Two runs that differ in one part therefore drop the same units everywhere else, and so do a kernel
that computes some rows at a time, a block that is computed again in the backward pass, batches that
are accumulated, and processes that share a batch.

The function is splitmix64, of a counter: Steele et al. 2014, "Fast splittable pseudorandom number
generators", figures 16 and 17. Counter-based generators: Salmon et al. 2011, "Parallel random
numbers: as easy as 1, 2, 3".
"""

from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ablate.random.seeding import derive

LANES = 4  # draws of 16 bits in a number of 64
# The counter of a number: four draws of a row are one number. Sizes beyond these repeat draws.
ROW, HEAD, EXAMPLE = 2**18, 2**38, 2**46
GOLDEN, FIRST, SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
BLOCK = 2**14  # numbers: 128 KB, which stay in a core's cache


class Source(NamedTuple):
    """The numbers of a random stream for a part of a larger tensor."""

    key: Tensor  # of the stream: int64, no axes
    row: int = 0  # the first row
    column: int = 0  # the first column

    @property
    def from_row(self) -> Tensor:
        """The key of a stream whose row 0 is this first row."""
        return moved(self.key, self.row * ROW)


class Draws:
    """The random streams of a model, one per `Stream` module.

    keys: those of a training batch, each with the offset of the batch within its step; None outside
    of training.
    """

    def __init__(self, model: nn.Module) -> None:
        self.names: list[str] = []
        self.keys: Tensor | None = None
        for name, module in model.named_modules():
            if isinstance(module, Stream):
                module.draws, module.number = self, len(self.names)
                self.names.append(name)

    def of_batch(self, seed: int, step: int, example: int = 0) -> Tensor:
        """The keys of a batch whose first example has this place in the batch of the step."""
        keys = [derive(seed, "step", step, name) for name in self.names]
        return torch.tensor([*keys, signed(example * EXAMPLE * GOLDEN)])


class Stream(nn.Module):
    """A module that draws in training. Its name in the model is the name of its stream."""

    draws: Draws | None = None
    number = 0

    def key(self, x: Tensor, use: int = 0) -> Tensor:
        """The key of this batch, on the device of x. use: counts the uses within a batch.

        A model outside a training run takes a key from torch's own generator.
        """
        if self.draws is None or self.draws.keys is None:
            return torch.randint(2**63 - 1, (), device=x.device)
        key = self.draws.keys[self.number]
        return (mixed(key + use) if use else key) + self.draws.keys[-1]

    def key_of_step(self, x: Tensor) -> Tensor:
        """One for all batches and processes of an optimizer step."""
        if self.draws is None or self.draws.keys is None:
            return self.key(x)
        return self.draws.keys[self.number]


def draw(
    key: Tensor, examples: int, heads: int, rows: int, columns: int, row: int = 0, column: int = 0
) -> Tensor:
    """Random int16 numbers of all 16 bits: examples heads rows columns.

    row, column: place of the first ones in the tensor that they are a part of.
    """
    sizes = (examples, heads, rows, columns, row, column)
    if torch.compiler.is_compiling():
        return drawn(key, *sizes)
    return _draw(key, *sizes)


def _draw(
    key: Tensor, examples: int, heads: int, rows: int, columns: int, row: int, column: int
) -> Tensor:
    first, last = column // LANES, -(-(column + columns) // LANES)
    if key.device.type == "cpu":
        numbers = _numbers(int(key), examples, heads, rows, row, first, last)
    else:
        numbers = _numbers_elsewhere(key, examples, heads, rows, row, first, last)
    lanes = numbers.view(torch.int16)
    skip = column - first * LANES
    return lanes[..., skip : skip + columns].contiguous()


# Opaque to torch.compile, whose C++ overflows on the constants that it would multiply together.
drawn = torch.library.custom_op("ablate::draw", _draw, mutates_args=())


@drawn.register_fake
def _shape(
    key: Tensor, examples: int, heads: int, rows: int, columns: int, row: int, column: int
) -> Tensor:
    return key.new_empty((examples, heads, rows, columns), dtype=torch.int16)


def _numbers(
    key: int, examples: int, heads: int, rows: int, row: int, first: int, last: int
) -> Tensor:
    """examples heads rows (last - first): numbers of 64 bits, by numpy, in pieces.

    numpy takes as long for them as torch's own generator for as many (docs/results/benchmarks.md).
    """
    of_rows = np.zeros((), np.uint64)
    for begin, count, size in ((0, examples, EXAMPLE), (0, heads, HEAD), (row, rows, ROW)):
        steps = np.arange(begin, begin + count, dtype=np.uint64) * np.uint64(size)
        of_rows = of_rows[..., None] + steps
    of_rows = of_rows.reshape(-1, 1) * np.uint64(GOLDEN) + np.uint64(key % 2**64)
    of_columns = np.arange(first, last, dtype=np.uint64) * np.uint64(GOLDEN)
    numbers = np.empty((len(of_rows), last - first), np.uint64)
    size = max(1, BLOCK // max(1, last - first))
    shifted = np.empty((size, last - first), np.uint64)
    for begin in range(0, len(numbers), size):
        x = numbers[begin : begin + size]
        other = shifted[: len(x)]
        np.add(of_rows[begin : begin + size], of_columns, out=x)
        for shift, factor in ((30, FIRST), (27, SECOND), (31, None)):
            np.right_shift(x, np.uint64(shift), out=other)
            np.bitwise_xor(x, other, out=x)
            if factor:
                np.multiply(x, np.uint64(factor), out=x)
    return torch.from_numpy(numbers.view(np.int64)).view(examples, heads, rows, last - first)


def _numbers_elsewhere(
    key: Tensor, examples: int, heads: int, rows: int, row: int, first: int, last: int
) -> Tensor:
    """The same numbers by torch."""
    arange = partial(torch.arange, device=key.device)
    counter = (
        arange(examples)[:, None, None, None] * EXAMPLE
        + arange(heads)[:, None, None] * HEAD
        + arange(row, row + rows)[:, None] * ROW
        + arange(first, last)
    )
    return mixed(counter * signed(GOLDEN) + key)


def draw_at(key: Tensor, rows: Tensor, columns: Tensor, heads: int) -> Tensor:
    """The numbers of `draw` for one example at rows e and columns e: e heads."""
    counter = (rows * ROW + columns // LANES)[:, None]
    counter = counter + torch.arange(heads, device=key.device) * HEAD
    numbers = mixed(counter * signed(GOLDEN) + key)
    return (numbers >> (16 * (columns % LANES))[:, None]).to(torch.int16)


drawn_at = torch.library.custom_op("ablate::draw_at", draw_at, mutates_args=())


@drawn_at.register_fake
def _shape_at(key: Tensor, rows: Tensor, columns: Tensor, heads: int) -> Tensor:
    return key.new_empty((len(rows), heads), dtype=torch.int16)


def mixed(x: Tensor) -> Tensor:
    """splitmix64's function of int64 numbers, whose `>>` of torch copies the sign."""
    x = (x ^ ((x >> 30) & (2**34 - 1))) * signed(FIRST)
    x = (x ^ ((x >> 27) & (2**37 - 1))) * signed(SECOND)
    return x ^ ((x >> 31) & (2**33 - 1))


def uniform(source: Source, like: Tensor) -> Tensor:
    """`uniform_alone`, independent of the dropout of the same layer."""
    # 2^63 more: a sum, so that a key moved to an example of the batch stays at that example.
    return uniform_alone(source._replace(key=source.key ^ torch.iinfo(torch.int64).min), like)


def uniform_alone(source: Source, like: Tensor) -> Tensor:
    """Numbers between 0 and 1, both excluded, of the shape b h i j of `like`; float32 or wider."""
    wide = torch.promote_types(like.dtype, torch.float32)
    examples, heads, rows, columns = like.shape
    lanes = draw(source.key, examples, heads, rows, 2 * columns, source.row, 2 * source.column)
    lanes = lanes.unflatten(-1, (columns, 2))
    high, low = (lanes.to(wide) + 2**15).unbind(-1)
    # 16 and 7 bits: a float32 has 24, so that neither end is reached.
    return (high + ((low / 2**9).floor() + 0.5) / 2**7) / 2**16


def normal(source: Source, like: Tensor) -> Tensor:
    """Standard normal numbers of the shape b h i j of `like`; float32 or wider."""
    return 2**0.5 * torch.erfinv(2 * uniform_alone(source, like) - 1)


def moved(key: Tensor, counter: int) -> Tensor:
    """The key of a stream whose first number is the one that `key` has at this counter."""
    return key + signed(counter * GOLDEN)


def signed(number: int) -> int:
    """A number of 64 bits as torch's int64 has it."""
    return (number + 2**63) % 2**64 - 2**63
