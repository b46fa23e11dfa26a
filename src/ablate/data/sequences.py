"""Sequences of integers to reverse, copy or sort: tasks with a known alignment.

    reverse  3 17 42 5 -> 5 42 17 3        sort  3 17 42 5 -> 3 5 17 42

The reverse task and its sizes are JoeyNMT's (Kreutzer et al. 2019, arXiv 1907.12484; its
scripts/generate_reverse_task.py): validation and test include lengths that training never has.
"""

from abc import abstractmethod
from typing import Annotated, Any, ClassVar

import numpy as np

from ablate.config.rules import TOKENS, Count, Int
from ablate.data.generated import Generated
from ablate.data.pair_tokenizer import PairTokenizer, Words
from ablate.data.pairs import Link, Pair, Pairs
from ablate.errors import UserError
from ablate.machine import memory
from ablate.random.seeding import derive


class Sequences(Generated, Pairs):
    """Lengths and numbers are sampled uniformly; the three splits depend on `data_seed` only."""

    joint: ClassVar[bool] = True  # one vocabulary for source and target
    for_training: ClassVar[tuple[str, ...]] = ("train_examples", "max_train_length")

    def __init__(
        self,
        *,
        symbols: Annotated[int, Int(2, TOKENS)],
        min_length: Count,
        max_train_length: Count,
        test_max_length: Count,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.symbols = symbols
        self.min_length = min_length
        self.longest = {
            "train": max_train_length,
            "val": test_max_length,
            "test": test_max_length,
        }
        if min_length > min(self.longest.values()):
            raise UserError(
                f"data.min_length={min_length}: is above data.max_train_length={max_train_length} "
                f"or data.test_max_length={test_max_length}"
            )

    @abstractmethod
    def sources(self, numbers: list[int]) -> list[int]:
        """For each target position, the source position whose number it repeats."""

    def read(self) -> dict[str, list[Pair]]:
        return {split: self._drawn(split) for split in self.counts}

    def make_tokenizers(self, training: list[Pair]) -> tuple[PairTokenizer, PairTokenizer]:
        """One tokenizer for both sides, with a token for every possible number."""
        words = Words.of(map(str, range(self.symbols)))
        return words, words

    def alignment(self, split: str, index: int) -> list[Link]:
        numbers = list(map(int, self.texts[split][index].source.split()))
        return [
            (range(target, target + 1), range(source, source + 1))
            for target, source in enumerate(self.sources(numbers))
        ]

    def _drawn(self, split: str) -> list[Pair]:
        count, mean = self.counts[split], (self.min_length + self.longest[split]) / 2
        # A number is 8 bytes when sampled, a list item, and two characters twice in the texts.
        memory.require(
            20 * mean * count, f"data.{split}_examples={count}: of {mean:g} numbers each"
        )
        rng = np.random.default_rng(derive(self.data_seed, "sequences", split))
        lengths = rng.integers(self.min_length, self.longest[split] + 1, self.counts[split])
        drawn = rng.integers(self.symbols, size=lengths.sum())
        sequences = np.split(drawn, lengths.cumsum()[:-1])
        return [self._pair(sequence.tolist()) for sequence in sequences]

    def _pair(self, numbers: list[int]) -> Pair:
        target = [numbers[source] for source in self.sources(numbers)]
        return Pair(" ".join(map(str, numbers)), " ".join(map(str, target)))


class Reverse(Sequences):
    """The numbers in reverse order."""

    def sources(self, numbers: list[int]) -> list[int]:
        return list(reversed(range(len(numbers))))


class Copy(Sequences):
    """The same numbers."""

    def sources(self, numbers: list[int]) -> list[int]:
        return list(range(len(numbers)))


class Sort(Sequences):
    """The numbers in ascending order, equal ones in the order of the source."""

    def sources(self, numbers: list[int]) -> list[int]:
        return sorted(range(len(numbers)), key=numbers.__getitem__)
