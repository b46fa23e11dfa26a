"""Pairs of a preferred and a rejected response to a prompt, for a reward model, DPO and RLHF.

They are read from a file (pair_file.py) or generated (generated_pairs.py). Pairs of a file whose
responses are equal in the tokens that are read have nothing to prefer, and are dropped with a
message.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from lightning.pytorch.utilities import rank_zero_only as on_first_process
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from ablate.config.conflicts import Conflict
from ablate.config.rules import Count, Positive, RunDir, Vocabulary
from ablate.config.view import TEXT
from ablate.data.interface import Sizes, TaskSettings
from ablate.data.loader import Batch, Request
from ablate.data.text import Tokenized
from ablate.data.tokenizer import TokenizerName
from ablate.errors import UserError
from ablate.systems.rlhf.generated_pairs import COUNTS, GeneratedPairs
from ablate.systems.rlhf.pair_file import Pair, PairFile
from ablate.systems.rlhf.preference_rules import RULES, RuleName

log = logging.getLogger(__name__)

RULE: RuleName = "words"


@dataclass(frozen=True)
class Reading(TaskSettings):
    """The examples of a task, unless plain pairs: pairs for a model with one output, or prompts."""

    of: Literal["scores", "prompts"]


SCORES, PROMPTS = Reading("scores"), Reading("prompts")


class Encoded(NamedTuple):
    """prompt: its tokens. texts: the tokens of prompt and response, of each response. cut_prompt,
    cut_response: whether there were more."""

    prompt: int
    texts: list[NDArray[np.int32]]
    cut_prompt: bool
    cut_response: bool


class Preferred(Dataset[Batch]):
    """tokens: prompt and response in a row, padded with 0: of each pair the chosen one and then the
    rejected one, 2b i; of prompts only b i. keep: the same shape, True = real. prompt: b, the
    tokens of the prompt. gold: b 2, the scores of the responses by the rule; NaN without one.
    number: b, the index of a pair in its split.

    make: returns the pairs; called on the first access.
    """

    def __init__(self, count: int, make: Callable[[], list[Pair]], data: Preferences) -> None:
        self.count, self.make, self.data = count, make, data

    @cached_property
    def pairs(self) -> list[Pair]:
        return self.make()

    @cached_property
    def encoded(self) -> list[Encoded]:
        return [self.data.encoded(*pair) for pair in self.pairs]

    def keep(self, numbers: list[int]) -> None:
        """Drop all other pairs."""
        self.encoded = [self.encoded[n] for n in numbers]
        self.pairs = [self.pairs[n] for n in numbers]
        self.count = len(numbers)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, request: Request) -> Batch:
        numbers = request.indices.tolist()
        rows = [self.encoded[n] for n in numbers]
        tokens, keep = padded([text for row in rows for text in row.texts])
        batch = {
            "tokens": tokens,
            "keep": keep,
            "prompt": torch.tensor([row.prompt for row in rows]),
            "number": request.indices,
        }
        gold = self.data.gold
        if self.pairs[0].chosen is not None:
            scores = [
                [gold(text) if gold else torch.nan for text in self.pairs[n][1:]] for n in numbers
            ]
            batch["gold"] = torch.tensor(scores)
        return batch


def padded(texts: list[NDArray[np.int32]]) -> tuple[Tensor, Tensor]:
    """Tokens b i, padded with 0 at the end, and b i, True = real."""
    lengths = torch.tensor([len(text) for text in texts])
    tokens = torch.zeros(len(texts), int(lengths.max()), dtype=torch.long)
    for row, text in zip(tokens, texts, strict=True):
        row[: len(text)] = torch.from_numpy(text)
    return tokens, torch.arange(tokens.shape[1]) < lengths[:, None]


class Preferences(Tokenized):
    """path: a file of pairs; null: they are generated.
    policy_run: a finished run of a language model, whose responses are compared; its data
    are the source of prompts. null: passages of Python's help.
    preference_rule: scores responses. Of a file, which has its own preferences, it is only measured
    with them. null: `RULE`; of a file none.
    temperature: of the noise of generated preferences, in units of the rule; null: 1.
    prompt: the maximum number of tokens of a prompt; the last ones are kept. The other tokens of
    `seq_len` are for the response, which is cut after them.
    train_examples and the like: generated pairs, null: `COUNTS`; or the maximum number of pairs of
    a file's split, null: all of them.
    """

    kind: ClassVar[str] = "preferences between texts"
    read_as: ClassVar[str] = TEXT
    unit: ClassVar[str] = "pairs"
    conflicts = (
        Conflict(
            lambda c: c("data.prompt") >= c("data.seq_len"),
            "data.prompt={data.prompt} leaves no room for a response in"
            " data.seq_len={data.seq_len}",
        ),
        *(
            Conflict(
                lambda c, key=key: c("data.path") is not None and c(f"data.{key}") is not None,  # type: ignore[misc]
                f"data.{key}={{data.{key}}} is for generated pairs, and data.path={{data.path}}"
                f" contains pairs; set data.{key}=null, or data.path=null",
            )
            for key in ("policy_run", "temperature")
        ),
    )
    task_settings: Reading | None

    def __init__(
        self,
        *,
        path: str | None,
        policy_run: RunDir | None,
        preference_rule: RuleName | None,
        temperature: Positive | None,
        tokenizer: TokenizerName,
        vocab_size: Vocabulary | None,
        seq_len: Count,
        prompt: Count,
        train_examples: Count | None,
        val_examples: Count | None,
        test_examples: Count | None,
        batch_size: Count,
        seed: int,
    ) -> None:
        super().__init__(batch_size=batch_size, seed=seed)
        self.path, self.policy_run = path, policy_run
        self.preference_rule = preference_rule or (RULE if path is None else None)
        self.gold = RULES[self.preference_rule] if self.preference_rule else None
        self.temperature = 1.0 if temperature is None else temperature
        self.tokenizer_name = tokenizer
        self.vocab_size = vocab_size
        self.seq_len = seq_len
        self.prompt = prompt
        counts = {"train": train_examples, "val": val_examples, "test": test_examples}
        self.limits = {split: count for split, count in counts.items() if count is not None}
        if prompt >= seq_len:
            raise UserError(f"data.prompt={prompt}: leaves no room in data.seq_len={seq_len}")

    @property
    def room(self) -> int:
        """The tokens of a response."""
        return self.seq_len - self.prompt

    def origin(self) -> PairFile | GeneratedPairs:
        if self.path is not None:
            return PairFile(
                path=self.path,
                tokenizer_name=self.tokenizer_name,
                vocab_size=self.vocab_size,
                limits=self.limits,
                whole=self.whole,
            )
        assert self.gold is not None
        return GeneratedPairs(
            policy_run=self.policy_run,
            tokenizer_name=self.tokenizer_name,
            vocab_size=self.vocab_size,
            seq_len=self.seq_len,
            prompt=self.prompt,
            temperature=self.temperature,
            gold=self.gold,
            counts={**COUNTS, **self.limits},
            only_prompts=self.task_settings == PROMPTS,
            new_tokenizer=self.known_tokenizer is None,
        )

    def fingerprint(self) -> str:
        return self.origin().fingerprint()

    def load(self) -> None:
        origin = self.origin()
        self.tokenizer = self.known_tokenizer or origin.tokenizer()
        splits = {
            split: Preferred(count, partial(origin.pairs, split), self)
            for split, count in origin.counts.items()
        }
        if self.path is not None:
            self._drop_equal(splits)
        self.splits = dict(splits)
        classes = 1 if self.task_settings == SCORES else None
        vocab_size = self.tokenizer.vocab_size
        self.sizes = Sizes(vocab_size=vocab_size, length=self.seq_len, classes=classes)

    def encoded(self, prompt: str, *responses: str | None) -> Encoded:
        """A prompt with each response, as it is read; None: only the prompt."""
        whole = self.tokenizer.array(prompt)
        first = whole[-self.prompt :]
        written = [self.tokenizer.array(text) for text in responses if text is not None]
        texts = [np.concatenate([first, response[: self.room]]) for response in written] or [first]
        long = any(len(response) > self.room for response in written)
        return Encoded(len(first), texts, len(whole) > len(first), long)

    def _drop_equal(self, splits: Mapping[str, Preferred]) -> None:
        """Drop the pairs of a file whose responses are equal in the tokens that are read; print
        their number, and the number of cut texts."""
        pairs = [pair for split in splits.values() for pair in split.encoded]
        counts = {
            f"have a prompt longer than data.prompt={self.prompt} tokens; only the last are"
            " read": sum(pair.cut_prompt for pair in pairs)
        }
        if self.task_settings != PROMPTS:
            for name, split in splits.items():
                differ = [
                    number
                    for number, pair in enumerate(split.encoded)
                    if not np.array_equal(pair.texts[0], pair.texts[1])
                ]
                if not differ:
                    raise UserError(
                        f"data.path={self.path}: the responses of every pair of the {name} split"
                        f" are equal in the {self.room} tokens that data.seq_len={self.seq_len} and"
                        f" data.prompt={self.prompt} leave them"
                    )
                split.keep(differ)
            counts |= {
                f"have a response longer than the {self.room} tokens that data.seq_len="
                f"{self.seq_len} leaves, which is cut": sum(pair.cut_response for pair in pairs),
                "are dropped, whose responses are equal in these tokens": len(pairs)
                - sum(map(len, splits.values())),
            }
        if said := [f"{count:,} {words}" for words, count in counts.items() if count]:
            on_first_process(log.warning)(
                "ablate: data.path=%s: of %s pairs, %s",
                *(self.path, f"{len(pairs):,}", "; ".join(said)),
            )

    def example(self, index: int = 0) -> dict[str, Any]:
        """A validation pair, with `labels`: the tokens of its chosen text."""
        return self._labeled(super().example(index))

    def from_text(self, text: str) -> dict[str, Any]:
        """A user's text, without a prompt."""
        whole = self.tokenizer.array(text)
        if len(whole) > self.seq_len:
            log.warning(
                "ablate: the text has %d tokens; only the first data.seq_len=%d are read",
                *(len(whole), self.seq_len),
            )
        tokens, keep = padded([whole[: self.seq_len]])
        none = torch.zeros(1, dtype=torch.long)
        return self._labeled({"tokens": tokens, "keep": keep, "prompt": none, "number": none})

    def _labeled(self, batch: dict[str, Any]) -> dict[str, Any]:
        ids = batch["tokens"][0][batch["keep"][0]].tolist()
        return batch | {"labels": self.tokenizer.labels(ids)}

    def sequences(self, name: str) -> list[NDArray[np.int32]]:
        train = self.splits["train"]
        assert isinstance(train, Preferred)
        return [text for encoded in train.encoded for text in encoded.texts]
