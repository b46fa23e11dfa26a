"""Pairs of texts for sequence-to-sequence models: a source and its target, as token ids.

A batch contains, padded with PAD at the end,

    source     b j   the source's tokens, EOS
    target_in  b i   BOS, the target's tokens
    targets    b i   the target's tokens, EOS, then IGNORED in place of PAD
    index      b     the example's number in its split

Training batches contain sources of similar length (Sutskever et al. 2014, section 3.4, arXiv
1409.3215), validation and test are in order of length.
"""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import chain
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from lightning.pytorch.utilities import rank_zero_only as on_first_process
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from ablate.config.rules import Count
from ablate.data import IGNORED, Data, digest, padded
from ablate.data.interface import Sizes
from ablate.data.loader import Batch, Bucketed, Order, Request
from ablate.data.pair_tokenizer import (
    BOS,
    EOS,
    PAD,
    UNKNOWN,
    Characters,
    PairTokenizer,
    restored,
)
from ablate.data.split import SPOKEN
from ablate.errors import UserError
from ablate.machine.terminal.bar import progress
from ablate.machine.terminal.say import say

__all__ = ["BOS", "EOS", "PAD", "UNKNOWN", "Link", "Pair", "Pairs"]

Link = tuple[range, range]  # target positions and the source positions they align with
Tokens = NDArray[np.int32]
Encoded = dict[int, tuple[Tokens, Tokens]]  # of source and target, by number


class Pair(NamedTuple):
    source: str
    target: str


class Sentences:
    """Sentences of any length, concatenated in one tensor, each between BOS and EOS.

    lengths: tokens of each, with EOS and without BOS.
    """

    def __init__(self, sentences: Sequence[Tokens]) -> None:
        self.lengths = torch.tensor([len(tokens) + 1 for tokens in sentences])
        self.starts = (self.lengths + 1).cumsum(0) - (self.lengths + 1)
        first, last = np.array([BOS], np.int32), np.array([EOS], np.int32)
        marked = chain.from_iterable((first, tokens, last) for tokens in sentences)
        self.flat = torch.from_numpy(np.concatenate(list(marked)))

    def rows(self, indices: Tensor, *, shift: int, fill: int) -> Tensor:
        """`lengths` tokens of each, from BOS (shift 0) or the token after it (shift 1), padded."""
        return padded(self.flat, self.starts[indices] + shift, self.lengths[indices], fill)


class Split(Dataset[Batch]):
    """The pairs of one split as batches."""

    def __init__(self, source: Sentences, target: Sentences) -> None:
        self.source, self.target = source, target

    def __len__(self) -> int:
        return len(self.source.lengths)

    def __getitem__(self, request: Request) -> Batch:
        numbers = request.indices
        return {
            "source": self.source.rows(numbers, shift=1, fill=PAD),
            "target_in": self.target.rows(numbers, shift=0, fill=PAD),
            "targets": self.target.rows(numbers, shift=1, fill=IGNORED),
            "index": numbers,
        }

    @property
    def longest(self) -> Tensor:
        """The numbers of the pair with the longest source and of that with the longest target."""
        return torch.stack([side.lengths.argmax() for side in (self.source, self.target)])

    @property
    def by_length(self) -> Tensor:
        """A sort key for each pair: by source length, then by target length."""
        widest = int(self.target.lengths.max()) + 1
        return self.source.lengths * widest + self.target.lengths


class Targets(Data):
    """A batch contains target_in and targets, b i, and index, b, as above.

    item: name of a target token as the unit of error rates, such as "phoneme".
    """

    item: str | None = None
    target_tokenizer: PairTokenizer

    @abstractmethod
    def reference(self, split: str, index: int) -> str:
        """The reference text of an example."""


class Pairs(Targets):
    """Base of data sets of pairs: a subclass reads the pairs and chooses the tokenizers.

    max_length: training pairs with more tokens on a side are dropped, with a message; null: none.

    texts: the remaining pairs of each split; `index` in a batch is an index into them.
    numbers: the index of each of them in the return value of `read`.
    """

    kind: ClassVar[str] = "pairs"
    unit: ClassVar[str] = "pairs"
    for_training: ClassVar[tuple[str, ...]] = ("train_examples", "max_length")
    texts: dict[str, list[Pair]]
    numbers: dict[str, list[int]]
    source_tokenizer: PairTokenizer

    def __init__(self, *, batch_size: Count, seed: int, max_length: Count | None = None) -> None:
        super().__init__(batch_size=batch_size, seed=seed)
        self.max_length = max_length

    @abstractmethod
    def read(self) -> dict[str, list[Pair]]:
        """The pairs of "train", "val" and usually "test", without spaces at their ends."""

    def make_tokenizers(self, training: list[Pair]) -> tuple[PairTokenizer, PairTokenizer]:
        """The tokenizers of source and target; the same one twice for a joint vocabulary."""
        return Characters(p.source for p in training), Characters(p.target for p in training)

    def location(self, split: str, number: int) -> str:
        """The location of a pair that `read` returned, for messages."""
        return f"example {number + 1} of the {split} split"

    def alignment(self, split: str, index: int) -> list[Link] | None:
        """The alignment of a target with its source, a link per field; None if unknown."""
        return None

    def reference(self, split: str, index: int) -> str:
        return self.texts[split][index].target

    @cached_property
    def _read(self) -> dict[str, list[Pair]]:
        return self.read()

    def fingerprint(self) -> str:
        return digest(self._read)

    def load(self) -> None:
        if self.whole:  # `fingerprint` has read its splits
            vars(self).pop("_read", None)
        self.numbers = {split: self._with_text(split) for split in self._read}
        if isinstance(self.measured_as, Pairs):
            known = self.measured_as
            both = known.source_tokenizer, known.target_tokenizer
        else:
            both = self.make_tokenizers([self._read["train"][n] for n in self.numbers["train"]])
        self.source_tokenizer, self.target_tokenizer = both
        self.splits = {split: self._split(split) for split in self.numbers}
        self.texts = {
            split: [self._read[split][number] for number in numbers]
            for split, numbers in self.numbers.items()
        }
        sides = [(split.source, split.target) for split in map(self._encoded_split, self.splits)]
        self.sizes = Sizes(
            source_vocab=self.source_tokenizer.vocab_size,
            target_vocab=self.target_tokenizer.vocab_size,
            source_length=max(int(source.lengths.max()) for source, _ in sides),
            target_length=max(int(target.lengths.max()) for _, target in sides),
            joint=self.source_tokenizer is self.target_tokenizer,
        )

    def fitted(self) -> dict[str, Any] | None:
        source, target = self.source_tokenizer.state(), self.target_tokenizer.state()
        if source is None or target is None:
            return None
        joint = self.source_tokenizer is self.target_tokenizer
        return {"source": source, "target": None if joint else target}

    def use_fitted(self, fitted: dict[str, Any]) -> None:
        self.source_tokenizer = source = restored(fitted["source"])
        target = fitted["target"]
        self.target_tokenizer = source if target is None else restored(target)

    def train_order(self) -> Order:
        lengths = self._encoded_split("train").by_length
        return Bucketed(super().train_order(), lengths, seed=self.seed)

    def measured_order(self, split: str, examples: Tensor) -> Tensor:
        """In order of length."""
        lengths = self._encoded_split(split).by_length[examples]
        return examples[lengths.argsort(stable=True)]

    def example(self, index: int = 0) -> dict[str, Any]:
        """A validation pair, with the tokens of `source` and `targets` in printable characters."""
        batch = super().example(index)
        source, target = batch["source"][0].tolist(), batch["targets"][0].tolist()
        return batch | {
            "source_labels": self.source_tokenizer.labels(source),
            "target_labels": self.target_tokenizer.labels(target),
        }

    def sequences(self, name: str) -> Iterator[NDArray[np.int32]]:
        """Sources with their EOS, targets with their BOS."""
        train = self._encoded_split("train")
        side, shift = (train.source, 1) if name == "source" else (train.target, 0)
        starts = side.starts + shift
        spans = zip(starts.tolist(), (starts + side.lengths).tolist(), strict=True)
        flat = side.flat.numpy()
        return (flat[start:end] for start, end in spans)

    def typical_batch(self) -> Batch:
        """`batch_size` pairs without padding, both sides of their mean length."""
        train = self._encoded_split("train")
        sides = {"source": train.source, "target_in": train.target}
        means = {name: round(float(side.lengths.float().mean())) for name, side in sides.items()}
        return {name: torch.full((self.batch_size, n), UNKNOWN) for name, n in means.items()}

    def _encoded_split(self, split: str) -> Split:
        encoded = self.splits[split]
        assert isinstance(encoded, Split)
        return encoded

    def _with_text(self, split: str) -> list[int]:
        """Numbers of the pairs to use: all of a test split, so that results stay comparable."""
        everything = range(len(self._read[split]))
        empty = {number for number in everything if not all(self._read[split][number])}
        if empty:
            done = "kept, so that the test stays the same" if split == "test" else "dropped"
            self._say(split, f"{len(empty)} with an empty side, {done}", min(empty))
        complete = [n for n in everything if split == "test" or n not in empty]
        if not complete:
            raise UserError(f"the {SPOKEN[split]} split has no pair with text on both sides")
        return complete

    def _split(self, split: str) -> Split:
        """A split's pairs as tokens; removes pairs too long for training from `numbers`."""
        pairs = self._read[split]
        tokens = {
            number: (
                np.array(self.source_tokenizer.encode(pairs[number].source), np.int32),
                np.array(self.target_tokenizer.encode(pairs[number].target), np.int32),
            )
            for number in progress(self.numbers[split], f"tokenizing {split}", "pairs")
        }
        if split == "train" and self.max_length is not None:
            tokens = self._short(tokens, self.max_length)
        self.numbers[split] = list(tokens)
        sources, targets = zip(*tokens.values(), strict=True)
        return Split(Sentences(sources), Sentences(targets))

    def _short(self, tokens: Encoded, most: int) -> Encoded:
        longest = {number: max(map(len, pair)) for number, pair in tokens.items()}
        long = [number for number, length in longest.items() if length > most]
        if len(long) == len(tokens):
            raise UserError(f"data.max_length={most}: every training pair is longer")
        if long:
            what = f"{len(long)} dropped, longer than data.max_length={most}"
            self._say("train", what, long[0], f", {longest[long[0]]} tokens")
        return {number: pair for number, pair in tokens.items() if longest[number] <= most}

    def _say(self, split: str, what: str, first: int, more: str = "") -> None:
        line = f"{SPOKEN[split]} pairs: {what}; the first is {self.location(split, first)}{more}"
        on_first_process(say)(line)
