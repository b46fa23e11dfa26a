"""Tokenizers of sentence pairs, with four special tokens that no text can produce.

Every tokenizer is built from training sentences only, and the special tokens are the same for both
sides.
"""

import re
import unicodedata
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import chain
from typing import Any, NamedTuple

from ablate.data.tokenizer import UNKNOWN as STRANGE
from ablate.data.tokenizer import Bpe, printable

PAD, BOS, EOS, UNKNOWN = range(4)  # UNKNOWN: absent from the training split
SPECIALS = ("<pad>", "<s>", "</s>", "<unk>")
JOINER = "\N{HALFWIDTH BLACK SQUARE}"  # in figures: no space before this token, as in OpenNMT


class PairTokenizer(ABC):
    """Base of the tokenizers. lower: sentences are lower-cased."""

    vocab_size: int  # the four special tokens included

    def __init__(self, *, lower: bool = False) -> None:
        self.lower = lower

    def encode(self, text: str) -> list[int]:
        """Token ids, without BOS and EOS."""
        return self._encode(text.lower() if self.lower else text)

    def decode(self, tokens: Iterable[int]) -> str:
        """Text up to the first EOS; PAD and BOS are skipped."""
        numbers: list[int] = []
        for token in map(int, tokens):
            if token == EOS:
                break
            if token not in (PAD, BOS):
                numbers.append(token)
        return self._decode(numbers)

    def label(self, token: int) -> str:
        """One token in printable characters, for figures."""
        return SPECIALS[token] if token < len(SPECIALS) else self._label(token)

    def labels(self, tokens: Sequence[int]) -> list[str]:
        """A sequence in printable characters, token by token."""
        return [self.label(token) for token in tokens]

    def state(self) -> dict[str, Any] | None:
        """Plain values from which `restored` makes this tokenizer; None if it is built from the
        data."""
        return None

    @abstractmethod
    def _encode(self, text: str) -> list[int]: ...

    @abstractmethod
    def _decode(self, tokens: list[int]) -> str: ...

    def _label(self, token: int) -> str:
        return printable(self._decode([token]))


class Characters(PairTokenizer):
    """One token for each distinct character, in code point order; unknown ones decode to U+FFFD."""

    def __init__(self, training: Iterable[str], *, lower: bool = False) -> None:
        super().__init__(lower=lower)
        known = set(chain.from_iterable(training))
        self.characters = ["", "", "", STRANGE, *sorted(known)]
        self.numbers = {c: n for n, c in enumerate(self.characters) if n >= len(SPECIALS)}
        self.vocab_size = len(self.characters)

    def state(self) -> dict[str, Any]:
        known = "".join(self.characters[len(SPECIALS) :])
        return {"kind": "char", "characters": known, "lower": self.lower}

    def _encode(self, text: str) -> list[int]:
        return [self.numbers.get(character, UNKNOWN) for character in text]

    def _decode(self, tokens: list[int]) -> str:
        return "".join(self.characters[token] for token in tokens)


class Word(NamedTuple):
    """joined: without a space before it."""

    joined: bool
    text: str


class Words(PairTokenizer):
    """Words and single punctuation marks, the most frequent first.

    If all words are known, a sentence is restored with single spaces between its words. Whether
    there is a space before a word is part of the token: OpenNMT's joiner mark (Klein et al. 2017,
    arXiv 1701.02810), but no character of the text.

    min_count: words with fewer occurrences are unknown, and unknown ones decode to <unk>.
    """

    def __init__(self, words: Sequence[Word], *, lower: bool = False) -> None:
        super().__init__(lower=lower)
        self.words = [*(Word(False, special) for special in SPECIALS), *words]
        self.numbers = {word: number for number, word in enumerate(words, len(SPECIALS))}
        self.vocab_size = len(self.words)
        self.runs: dict[str, list[int]] = {}  # the tokens of runs of characters without spaces

    @classmethod
    def of(cls, training: Iterable[str], *, min_count: int = 1, lower: bool = False) -> "Words":
        runs = Counter(run for text in training for run in text.split())
        counts: Counter[Word] = Counter()
        for run, times in runs.items():
            for word in _words(run):
                counts[word] += times
        words = [word for word, count in counts.items() if count >= min_count]
        return cls(sorted(words, key=lambda word: (-counts[word], word)), lower=lower)

    def state(self) -> dict[str, Any]:
        words = [[word.joined, word.text] for word in self.words[len(SPECIALS) :]]
        return {"kind": "word", "words": words, "lower": self.lower}

    def _encode(self, text: str) -> list[int]:
        return [token for run in text.split() for token in self._run(run)]

    def _run(self, run: str) -> list[int]:
        if run not in self.runs:
            self.runs[run] = [self.numbers.get(word, UNKNOWN) for word in _words(run)]
        return self.runs[run]

    def _decode(self, tokens: list[int]) -> str:
        words = [self.words[token] for token in tokens]
        return "".join(word.text if word.joined else f" {word.text}" for word in words).lstrip(" ")

    def _label(self, token: int) -> str:
        joined, text = self.words[token]
        return JOINER * joined + printable(text)


class Subwords(PairTokenizer):
    """Byte-level byte pair encoding (BPE), with which no text is unknown.

    A space is put before the sentence, so that its first word is the same token as elsewhere;
    decoding restores any sentence but for spaces at its ends.
    """

    def __init__(self, bpe: Bpe, *, lower: bool = False) -> None:
        super().__init__(lower=lower)
        self.bpe, self.vocab_size = bpe, bpe.vocab_size

    def state(self) -> dict[str, Any]:
        return {**self.bpe.state(), "lower": self.lower}

    def _encode(self, text: str) -> list[int]:
        text = text.strip()
        return self.bpe.encode(f" {text}") if text else []

    def _decode(self, tokens: list[int]) -> str:
        return "".join(self._pieces(tokens)).removeprefix(" ")

    def _label(self, token: int) -> str:
        return printable(self.bpe.decode([token]))

    def _pieces(self, tokens: list[int]) -> Iterator[str]:
        """The texts between unknown tokens, which a model can write but no text contains."""
        start = 0
        for position, token in enumerate(tokens):
            if token == UNKNOWN:
                yield self.bpe.decode(tokens[start:position])
                yield STRANGE
                start = position + 1
        yield self.bpe.decode(tokens[start:])


def make(
    kind: str,
    training: Iterable[str],
    *,
    vocab_size: int | None = None,
    min_count: int = 1,
    lower: bool = False,
) -> PairTokenizer:
    """The tokenizer that `data.tokenizer` names. training: texts that are lower-case if `lower`."""
    if kind == "bpe":
        spaced = (f" {text.strip()}" for text in training)
        learned = Bpe.of(spaced, vocab_size=vocab_size, reserved=len(SPECIALS))
        return Subwords(learned, lower=lower)
    if kind == "word":
        return Words.of(training, min_count=min_count, lower=lower)
    return Characters(training, lower=lower)


def restored(state: Mapping[str, Any]) -> PairTokenizer:
    """The tokenizer of a `state`."""
    lower = state["lower"]
    if state["kind"] == "bpe":
        return Subwords(Bpe.from_state(state), lower=lower)
    if state["kind"] == "word":
        return Words([Word(*word) for word in state["words"]], lower=lower)
    return Characters(state["characters"], lower=lower)


def _words(run: str) -> list[Word]:
    return [Word(position > 0, text) for position, text in enumerate(_pattern().findall(run))]


@cache
def _pattern() -> re.Pattern[str]:
    r"""A run of letters and digits, or one other character, with its combining marks.

    Python's \w does not match combining marks, with which many scripts write their vowels.
    """
    marks = "".join(
        re.escape(chr(code)) for code in range(0x20000) if unicodedata.category(chr(code))[0] == "M"
    )
    return re.compile(rf"\w[\w{marks}]*|[^\w\s][{marks}]*")
