"""A file of preferences: a pair in each line, {"prompt": TEXT, "chosen": TEXT, "rejected": TEXT}.

It is split by a hash of the prompts, so that all pairs of a prompt are in one split.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

from ablate.data import digest, source
from ablate.data.split import BOUNDS, text_key, three_way
from ablate.data.tokenizer import Tokenizer, TokenizerName, make_tokenizer
from ablate.errors import UserError


class Pair(NamedTuple):
    """chosen None: only a prompt."""

    prompt: str
    chosen: str | None = None
    rejected: str | None = None


@dataclass(kw_only=True)
class PairFile:
    """limits: the most pairs of a split. whole: whether all pairs validate. The other fields are
    options of Preferences.
    """

    path: str
    tokenizer_name: TokenizerName
    vocab_size: int | None
    limits: Mapping[str, int]
    whole: bool

    def fingerprint(self) -> str:
        limits = [self.limits] if self.limits else []
        return digest(source.content_hash(self.path, None), BOUNDS, "by prompt", *limits)

    @cached_property
    def splits(self) -> dict[str, list[Pair]]:
        read = list(self._read())
        if not read:
            raise UserError(f"data.path={self.path}: has no pairs")
        prompts = [text_key(pair.prompt) for pair in read]
        splits = {"val": list(range(len(read)))} if self.whole else three_way(prompts)
        if empty := [split for split, numbers in splits.items() if not numbers]:
            raise UserError(
                f"data.path={self.path}: {len(read)} pairs of {len(set(prompts))} prompts are"
                f" too few: none are left for {' and '.join(empty)}"
            )
        return {
            split: [read[n] for n in numbers[: self.limits.get(split)]]
            for split, numbers in splits.items()
        }

    @property
    def counts(self) -> dict[str, int]:
        return {split: len(pairs) for split, pairs in self.splits.items()}

    def pairs(self, split: str) -> list[Pair]:
        return self.splits[split]

    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the options of `data`, fitted to the training pairs."""
        name, size = self.tokenizer_name, self.vocab_size
        return make_tokenizer(
            name, size, partial(self._texts, "train"), partial(self._texts, "val", "test")
        )

    def _texts(self, *splits: str) -> Iterator[str]:
        pairs = (pair for split in splits for pair in self.splits[split])
        return ("".join(pair) + "\n" for pair in pairs)  # type: ignore[arg-type]

    def _read(self) -> Iterator[Pair]:
        text = source.text(source.read(self.path), self.path)
        for number, line in enumerate(source.lines(text), 1):
            if line.strip():
                yield _pair(line, f"data.path={self.path}: line {number}")


def _pair(line: str, where: str) -> Pair:
    try:
        read = json.loads(line)
    except ValueError as error:
        raise UserError(f"{where} is not valid JSON ({error})") from None
    texts: list[Any] = [read.get(name) if isinstance(read, dict) else None for name in Pair._fields]
    if not all(isinstance(text, str) and text for text in texts):
        raise UserError(
            f'{where}: must be {{"prompt": TEXT, "chosen": TEXT, "rejected": TEXT}}, none of them'
            " empty"
        )
    if any("\ud800" <= character <= "\udfff" for text in texts for character in text):
        raise UserError(f"{where}: contains an unpaired surrogate (\\ud800 to \\udfff)")
    return Pair(*texts)
