"""Multi-query associative recall (MQAR): the synthetic probe for attention.

    k1 v1 k2 v2 ... kn vn  . . k2 . k1 . . kn .     target at each later k: the v it came with

Zoology, Arora et al. 2023 (arXiv 2312.04927), section 3 and appendix: pairs first, then every key
again as a query. A query may be at every second position after the pairs; positions are sampled
without replacement with the weights a * g ** (a - 1) of a power law, so short distances g are the
most likely. Keys and values never share a token; within a sequence no key and no value occurs in
two pairs. 0 is the filler between queries.
"""

import hashlib
from collections.abc import Sequence
from functools import cached_property
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from ablate.config.rules import TOKENS, Count, Int, refusal
from ablate.data import IGNORED, digest
from ablate.data.generated import Generated
from ablate.data.interface import Sizes
from ablate.data.loader import Batch, Request
from ablate.errors import UserError
from ablate.machine import memory
from ablate.random.seeding import derive

POWER = 0.01  # a in the power law, Zoology's value
CHUNK = 4096  # sequences made at a time, which bounds the memory


class Sequences(Dataset[Batch]):
    """tokens, targets: b i. group: b, the number of pairs of a sequence."""

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self.tensors = tensors

    def __len__(self) -> int:
        return len(self.tensors["group"])

    def __getitem__(self, request: Request) -> Batch:
        return {name: tensor[request.indices] for name, tensor in self.tensors.items()}


class Recall(Generated):
    """vocab_size: filler 0, keys below vocab_size // 2, values from there on.
    pairs: numbers of key-value pairs; each sequence has one of them, all equally often.
    """

    kind: ClassVar[str] = "recall"
    unit: ClassVar[str] = "sequences"

    def __init__(
        self,
        *,
        vocab_size: Annotated[int, Int(4, TOKENS)],
        seq_len: Count,
        pairs: Sequence[Count],
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.vocab_size = vocab_size
        self.seq_len = seq_len
        self.pairs = self._pairs(pairs)
        enough = Int(len(self.pairs))
        for split, count in self.counts.items():
            if not enough.allows(count):
                raise UserError(refusal(f"data.{split}_examples", count, enough))

    def _pairs(self, pairs: Sequence[int]) -> list[int]:
        numbers = list(pairs)
        if len(set(numbers)) < len(numbers):
            raise UserError(f"data.pairs={numbers}: duplicate number")
        most, keys = max(numbers), self.vocab_size // 2 - 1
        if most > keys:
            raise UserError(
                f"data.pairs={numbers}: data.vocab_size={self.vocab_size} has only {keys} keys, "
                f"at least data.vocab_size={2 * most + 2} is needed"
            )
        if 4 * most > self.seq_len:
            raise UserError(
                f"data.seq_len={self.seq_len}: {most} pairs and their queries need at least "
                f"{4 * most} positions"
            )
        return numbers

    def load(self) -> None:
        self.splits = {split: Sequences(tensors) for split, tensors in self._made.items()}
        self.sizes = Sizes(vocab_size=self.vocab_size, length=self.seq_len)

    def fingerprint(self) -> str:
        """A hash of the sequences: numpy may change its random streams between versions."""
        content = hashlib.sha256()
        for tensors in self._made.values():
            for tensor in tensors.values():
                content.update(tensor.numpy().tobytes())
        return digest(content.hexdigest(), self.counts)

    @cached_property
    def _made(self) -> dict[str, dict[str, Tensor]]:
        return {split: self._make(split) for split in self.counts}

    def example(self, index: int = 0) -> dict[str, Any]:
        """A validation sequence, with `labels`: k3 a key, v3 a value, · the filler."""
        batch = super().example(index)
        return batch | {"labels": [self._label(token) for token in batch["tokens"][0].tolist()]}

    def _label(self, token: int) -> str:
        first_value = self.vocab_size // 2
        if token == 0:
            return "·"
        return f"k{token}" if token < first_value else f"v{token - first_value}"

    def _make(self, split: str) -> dict[str, Tensor]:
        """Sequence n has the number of pairs at index n modulo their count."""
        count = self.counts[split]
        each = 8 * 2 * self.seq_len  # bytes of an example's tokens and targets
        memory.require(
            count * each, f"data.{split}_examples={count}: of {self.seq_len} tokens each"
        )
        drawn = 8 * self.vocab_size  # of the noise in its keys and values
        memory.require(min(count, CHUNK) * drawn, f"data.vocab_size={self.vocab_size}: the draws")
        tokens = np.zeros((count, self.seq_len), np.int64)
        targets = np.full((count, self.seq_len), IGNORED, np.int64)
        group = np.resize(self.pairs, count)
        for pairs in self.pairs:
            rng = np.random.default_rng(derive(self.data_seed, "recall", split, pairs))
            of_group = np.flatnonzero(group == pairs)
            for start in range(0, len(of_group), CHUNK):
                chunk = of_group[start : start + CHUNK]
                tokens[chunk], targets[chunk] = self._sequences(rng, len(chunk), pairs)
        arrays = {"tokens": tokens, "targets": targets, "group": group.astype(np.int64)}
        return {name: torch.from_numpy(array) for name, array in arrays.items()}

    def _sequences(
        self, rng: np.random.Generator, count: int, pairs: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        half, first_query = self.vocab_size // 2, 2 * pairs
        keys = 1 + _draw(rng, np.zeros(half - 1), count, pairs)
        values = half + _draw(rng, np.zeros(self.vocab_size - half), count, pairs)
        distances = np.arange(1, (self.seq_len - first_query) // 2 + 1)
        slots = _draw(rng, (POWER - 1) * np.log(distances), count, pairs)
        tokens = np.zeros((count, self.seq_len), np.int64)
        targets = np.full((count, self.seq_len), IGNORED, np.int64)
        tokens[:, 0:first_query:2], tokens[:, 1:first_query:2] = keys, values
        np.put_along_axis(tokens, first_query + 2 * slots, keys, axis=1)
        np.put_along_axis(targets, first_query + 2 * slots, values, axis=1)
        return tokens, targets


def _draw(
    rng: np.random.Generator, log_weights: NDArray[np.float64], count: int, size: int
) -> NDArray[np.int64]:
    """`count` draws of `size` different indices each, without replacement by weight.

    The largest of log weight plus Gumbel noise are such a draw, in its order (Gumbel-top-k, Kool
    et al. 2019, arXiv 1903.06059, section 2).
    """
    noise = rng.gumbel(size=(count, len(log_weights)))
    return np.argsort(-(log_weights + noise), axis=1)[:, :size]
