"""Texts and their speech as tokens: number words or short sentences, spoken by espeak-ng.

    three seven two  ->  17 17 203 88 ...

A token is the code of 20 ms of speech (src/ablate/systems/speech/). direction=synthesis has the
text as source and the speech as target (text to speech), direction=recognition the reverse. The
texts of a split are spoken in one process, in one order. The codes are learned from the training
speech.
"""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache
from itertools import product
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch

from ablate.config.rules import Count, Int, Seed
from ablate.data import digest
from ablate.data.pair_tokenizer import SPECIALS, PairTokenizer, make, restored
from ablate.data.pairs import Link, Pair, Pairs
from ablate.data.split import three_way
from ablate.errors import UserError
from ablate.random.seeding import derive
from ablate.systems.speech.codebook import Codebook, Frames
from ablate.systems.speech.espeak import speak
from ablate.systems.speech.mel import FRAMES, HOP, RATE, log_mel

DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
LONGEST = 4  # digits of a number
# A sentence takes one word, or group of words, of each.
SENTENCE = (
    ("two", "three", "four", "five", "six", "seven", "eight", "nine"),
    ("black", "brown", "green", "old", "young"),
    ("birds", "cats", "dogs", "horses", "men", "people", "sheep", "women"),
    ("live", "sleep", "stand", "stay", "wait"),
    ("behind", "near", "under"),
    ("the",),
    ("big", "long", "new", "small"),
    ("bridge", "house", "river", "street", "tower", "tree"),
)
FULL_SCALE = 2**15  # of samples of 16 bits


class Codes(PairTokenizer):
    """The codes of speech, written as numbers with spaces between them."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.vocab_size = len(SPECIALS) + count

    def labels(self, tokens: Sequence[int]) -> list[str]:
        """The time of each frame, in seconds."""
        return [
            self.label(token) if token < len(SPECIALS) else f"{n / FRAMES:.2f} s"
            for n, token in enumerate(tokens)
        ]

    def _encode(self, text: str) -> list[int]:
        return [len(SPECIALS) + int(code) for code in text.split()]

    def _decode(self, tokens: list[int]) -> str:
        return " ".join(str(token - len(SPECIALS)) for token in tokens if token >= len(SPECIALS))


class Spoken(NamedTuple):
    """A text, its speech as log-mels (frames x bands), and the start of each word: the character of
    the text and the sample; None if that is unknown."""

    text: str
    log_mels: Frames
    words: list[tuple[int, int]] | None


class SpokenPairs(Pairs):
    """Base of texts with their speech: a subclass defines `spoken`.

    direction: synthesis writes speech from text, recognition text from speech. tokenizer: of the
    text. codes: how many; they count in a run's id, as everything that is read does.
    """

    joint: ClassVar[bool] = False
    lower = False  # whether texts are lower-cased
    for_training: ClassVar[tuple[str, ...]] = (*Pairs.for_training, "tokenizer", "codes")

    def __init__(
        self,
        *,
        direction: Literal["synthesis", "recognition"],
        tokenizer: Literal["char", "word"],
        codes: Annotated[int, Int(2, 2**16)],
        max_length: Count | None,
        batch_size: Count,
        data_seed: Seed,
        seed: int,
    ) -> None:
        super().__init__(batch_size=batch_size, seed=seed, max_length=max_length)
        self.direction = direction
        self.tokenizer = tokenizer
        self.codes = codes
        self.data_seed = data_seed
        if direction == "synthesis":
            self.item = "frame"

    @abstractmethod
    def spoken(self) -> dict[str, Sequence[Spoken]]:
        """The utterances of "train", "val" and usually "test"; computed once."""

    @cached_property
    def codebook(self) -> Codebook:
        """Of these data, or, if a finished run is measured on them, of its training data."""
        if isinstance(self.measured_as, SpokenPairs):
            if self.direction != (trained := self.measured_as.direction):
                raise UserError(
                    f"data.direction={self.direction}: the model was trained for {trained}"
                )
            return self.measured_as.codebook
        training = [utterance.log_mels for utterance in self._spoken["train"]]
        return Codebook.learn(training, self.codes, derive(self.data_seed, "codebook"))

    def read(self) -> dict[str, list[Pair]]:
        pairs = {
            split: [Pair(utterance.text, self._codes(utterance)) for utterance in utterances]
            for split, utterances in self._spoken.items()
        }
        if self.direction == "synthesis":
            return pairs
        return {split: [Pair(*reversed(pair)) for pair in of] for split, of in pairs.items()}

    def _codes(self, utterance: Spoken) -> str:
        return " ".join(map(str, self.codebook.encode(utterance.log_mels).tolist()))

    def fingerprint(self) -> str:
        return digest(self._read, self.codec)

    @property
    def codec(self) -> str:
        """A hash of the codebook: the tokens of two models with the same mean the same."""
        return digest(self.codebook.centers.tolist())

    def make_tokenizers(self, training: list[Pair]) -> tuple[PairTokenizer, PairTokenizer]:
        synthesis = self.direction == "synthesis"
        return self._both(
            make(
                self.tokenizer,
                [p.source if synthesis else p.target for p in training],
                lower=self.lower,
            )
        )

    def _both(self, texts: PairTokenizer) -> tuple[PairTokenizer, PairTokenizer]:
        codes = Codes(self.codes)
        return (texts, codes) if self.direction == "synthesis" else (codes, texts)

    def fitted(self) -> dict[str, Any]:
        both = self.source_tokenizer, self.target_tokenizer
        texts = both[self.direction != "synthesis"]
        return {"texts": texts.state(), "centers": torch.from_numpy(self.codebook.centers)}

    def use_fitted(self, fitted: dict[str, Any]) -> None:
        self.codebook = Codebook(fitted["centers"].numpy())
        self.source_tokenizer, self.target_tokenizer = self._both(restored(fitted["texts"]))

    def utterance(self, split: str, index: int) -> Spoken:
        return self._spoken[split][self.numbers[split][index]]

    def word_times(self, split: str, index: int) -> list[tuple[str, float]] | None:
        """Each word with the second at which it starts; None if that is unknown."""
        text, _, words = self.utterance(split, index)
        if words is None:
            return None
        ends = [*(position for position, _ in words[1:]), len(text)]
        return [
            (text[position:end].strip(), sample / RATE)
            for (position, sample), end in zip(words, ends, strict=True)
        ]

    def alignment(self, split: str, index: int) -> list[Link] | None:
        """The tokens and the spoken frames of each word."""
        text, log_mels, words = self.utterance(split, index)
        if words is None:
            return None
        links = []
        frames = np.arange(len(log_mels)) * HOP  # the sample at the center of each
        ends = [*words[1:], (len(text), int(frames[-1]) + 1)]
        for (position, sample), (end_place, end_sample) in zip(words, ends, strict=True):
            first, last = np.searchsorted(frames, [sample, end_sample]).tolist()
            tokens = self._tokens_of(text, position, end_place)
            heard = range(first, last)
            links.append((heard, tokens) if self.direction == "synthesis" else (tokens, heard))
        return links

    def _tokens_of(self, text: str, start: int, end: int) -> range:
        """The text's tokens from one character to before another, without spaces at the end."""
        end = len(text[:end].rstrip())
        if self.tokenizer == "char":
            return range(start, end)
        return range(len(text[:start].split()), len(text[:end].split()))

    @cached_property
    def _spoken(self) -> dict[str, Sequence[Spoken]]:
        return self.spoken()


class Speech(SpokenPairs):
    """texts: numbers of one to four digits, or sentences of eight words. The split of a text
    depends only on the text, so that none of validation or test is trained on.

    voice, speed (words per minute), pitch (0 to 99): espeak-ng's. data_seed: random seed of the
    texts of each split.
    """

    def __init__(
        self,
        *,
        texts: Literal["numbers", "sentences"],
        voice: str,
        speed: Annotated[int, Int(80, 450)],
        pitch: Annotated[int, Int(0, 99)],
        train_examples: Count,
        val_examples: Count,
        test_examples: Count,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.from_texts = texts
        self.voice = voice
        self.speed, self.pitch = speed, pitch
        self.counts = {"train": train_examples, "val": val_examples, "test": test_examples}

    def spoken(self) -> dict[str, Sequence[Spoken]]:
        how = self.voice, self.speed, self.pitch
        return {split: _say(tuple(self._draw(split)), *how) for split in self.counts}

    def _draw(self, split: str) -> Iterator[str]:
        """Texts of a split: as many of each length as there are, or as are wanted."""
        count = self.counts[split]
        rng = np.random.default_rng(derive(self.data_seed, "speech", split))
        groups = [rng.permutation(texts).tolist() for texts in _texts(self.from_texts)[split]]
        if (available := sum(map(len, groups))) < count:
            raise UserError(
                f"data.{split}_examples={count}: data.texts={self.from_texts} has only {available}"
                " for this split"
            )
        while count:
            for group in groups:
                if count and group:
                    yield group.pop()
                    count -= 1


@lru_cache(2)
def _texts(kind: str) -> dict[str, list[list[str]]]:
    """All texts of each split, in a group for each number of words."""
    if kind == "numbers":
        groups = [product(DIGITS, repeat=count) for count in range(1, LONGEST + 1)]
    else:
        groups = [product(*SENTENCE)]
    split: dict[str, list[list[str]]] = {}
    for group in groups:
        texts = [" ".join(words) for words in group]
        for name, numbers in three_way([text.encode() for text in texts]).items():
            split.setdefault(name, []).append([texts[number] for number in numbers])
    return split


@lru_cache(8)
def _say(texts: tuple[str, ...], voice: str, speed: int, pitch: int) -> Sequence[Spoken]:
    """Kept, since the id of a run, its data and its recognizer use the same speech."""
    utterances = speak(texts, voice=voice, speed=speed, pitch=pitch)
    return [
        Spoken(text, log_mel(utterance.samples / FULL_SCALE), utterance.words)
        for text, utterance in zip(texts, utterances, strict=True)
    ]
