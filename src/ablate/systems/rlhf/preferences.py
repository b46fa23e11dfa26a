"""Pairs of a preferred and a rejected response to a prompt, for a reward model, DPO and RLHF.

A file has a pair in each line, as JSON: {"prompt": TEXT, "chosen": TEXT, "rejected": TEXT}; it is
split by a hash of the prompts, so that all pairs of a prompt are in one split. Pairs whose
responses are equal in the tokens that are read have nothing to prefer, and are dropped with a
message. Without a file the pairs are generated: two responses that a finished run (`policy_run`)
writes, or, without one, passages of Python's help: the one that follows the prompt, and one
from elsewhere. A rule scores both (preference_rules.py), in place of people. It errs as people do:
the first one is chosen with probability sigmoid((score - score of the other) / temperature), the
model of Bradley and Terry 1952 (Biometrika 39), which a reward model's loss assumes.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from lightning.pytorch.utilities import rank_zero_only as on_first_process
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from ablate.config.conflicts import Conflict
from ablate.config.rules import Count, Positive, RunDir, Vocabulary
from ablate.config.run_id import NO_WEIGHTS, weights
from ablate.config.view import TEXT
from ablate.data import digest, source
from ablate.data.interface import Sizes, TaskSettings
from ablate.data.loader import Batch, Request
from ablate.data.pydoc import Pydoc
from ablate.data.shards import windows
from ablate.data.split import BOUNDS, text_key, three_way
from ablate.data.text import TokenData, Tokenized
from ablate.data.tokenizer import TokenizerName, make_tokenizer
from ablate.errors import UserError
from ablate.model.base import LanguageModel
from ablate.random.seeding import derive
from ablate.systems.rlhf.preference_rules import RULES, RuleName
from ablate.systems.rlhf.rollout import rollout

if TYPE_CHECKING:
    from ablate.training.load import Run

log = logging.getLogger(__name__)

MADE = {"train": 2048, "val": 512, "test": 512}  # pairs
RULE: RuleName = "words"
AT_ONCE = 256  # responses that are written together


@dataclass(frozen=True)
class Reading(TaskSettings):
    """The examples of a task, unless plain pairs: pairs for a model with one output, or prompts."""

    of: Literal["scores", "prompts"]


SCORES, PROMPTS = Reading("scores"), Reading("prompts")


class Pair(NamedTuple):
    """chosen None: only a prompt."""

    prompt: str
    chosen: str | None = None
    rejected: str | None = None


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
        self.pairs, self.encoded = (
            [self.pairs[n] for n in numbers],
            [self.encoded[n] for n in numbers],
        )
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
    train_examples and the like: generated pairs, null: `MADE`; or the maximum number of pairs of a
    file's split, null: all of them.
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
        self.counts = {**MADE, **self.limits}
        if prompt >= seq_len:
            raise UserError(f"data.prompt={prompt}: leaves no room in data.seq_len={seq_len}")

    @property
    def room(self) -> int:
        """The tokens of a response."""
        return self.seq_len - self.prompt

    def fingerprint(self) -> str:
        if self.path is not None:
            limits = [self.limits] if self.limits else []
            return digest(source.content_hash(self.path, None), BOUNDS, "by prompt", *limits)
        if self.policy_run is None:
            return digest(self._help.fingerprint(), self.counts)
        if (written_by := weights(self.policy_run)) == NO_WEIGHTS:
            raise UserError(
                f"data.policy_run={self.policy_run} is not a run directory with weights"
            )
        return digest(written_by, self.counts)

    def load(self) -> None:
        if self.path is not None:
            lines = _lines(source.text(source.read(self.path), self.path), self.path)
            pairs = [_pair(line, number, self.path) for number, line in lines]
            prompts = [text_key(pair.prompt) for pair in pairs]
            every = {"val": list(range(len(pairs)))}
            split_lines = every if self.whole else three_way(prompts)
            if empty := [split for split, numbers in split_lines.items() if not numbers]:
                raise UserError(
                    f"data.path={self.path}: {len(pairs)} pairs of {len(set(prompts))} prompts are"
                    f" too few: none are left for {' and '.join(empty)}"
                )
            texts = {
                split: [pairs[n] for n in numbers[: self.limits.get(split)]]
                for split, numbers in split_lines.items()
            }

            def texts_of(*splits: str) -> Iterator[str]:
                pairs = (pair for split in splits for pair in texts[split])
                return ("".join(pair) + "\n" for pair in pairs)  # type: ignore[arg-type]

            make: dict[str, Callable[[], list[Pair]]] = {
                split: partial(list, of_split) for split, of_split in texts.items()
            }
            counts = {split: len(of_split) for split, of_split in texts.items()}
            known = self.known_tokenizer or make_tokenizer(
                self.tokenizer_name,
                self.vocab_size,
                partial(texts_of, "train"),
                partial(texts_of, "val", "test"),
            )
        else:
            make = {split: partial(self._generated, split) for split in self.counts}
            counts, known = self.counts, self.known_tokenizer or self.source.tokenizer
        self.tokenizer = known
        splits = {split: Preferred(counts[split], make[split], self) for split in make}
        if self.path is not None:
            self._drop_equal(splits)
        self.splits = dict(splits)
        classes = 1 if self.task_settings == SCORES else None
        self.sizes = Sizes(vocab_size=known.vocab_size, length=self.seq_len, classes=classes)

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
                differ = [n for n, pair in enumerate(split.encoded) if _differ(pair)]
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

    @cached_property
    def _help(self) -> Pydoc:
        return Pydoc(
            tokenizer=self.tokenizer_name,
            vocab_size=self.vocab_size,
            seq_len=self.seq_len,
            batch_size=self.batch_size,
            val_fraction=0.1,
            seed=0,
        )

    @cached_property
    def run(self) -> Run:
        """The run that writes."""
        from ablate.training.load import load

        assert self.policy_run is not None
        run = load(self.policy_run)
        if not isinstance(run.model, LanguageModel) or not isinstance(run.data, TokenData):
            raise UserError(
                f"data.policy_run={self.policy_run} is not a language model trained on text"
            )
        if run.model.length is not None and run.model.length < self.seq_len:
            raise UserError(
                f"data.seq_len={self.seq_len}: data.policy_run={self.policy_run} reads at most"
                f" {run.model.length} tokens"
            )
        if self.known_tokenizer is None:
            ours: dict[str, str | int] = {"tokenizer": self.tokenizer_name}
            if self.vocab_size is not None:
                ours["vocab_size"] = self.vocab_size
            for key, value in ours.items():
                if (its := run.config.data.get(key)) != value:
                    raise UserError(
                        f"data.{key}={value}: the texts of data.policy_run={self.policy_run} have"
                        f" the tokens of its run; set data.{key}={'null' if its is None else its}"
                    )
        return run

    @cached_property
    def source(self) -> TokenData:
        """The data whose passages are prompts."""
        if self.policy_run is None:
            self._help.setup()
            return self._help
        assert isinstance(self.run.data, TokenData)
        self.run.data.setup()
        return self.run.data

    def _generated(self, split: str) -> list[Pair]:
        """Prompts from the training part of the text, or from a half of the validation part."""
        text = self.source.tokens["train" if split == "train" else "val"]
        half = -(-len(text) // 2)
        begin = half if split == "test" else 0
        end = half if split == "val" else len(text)
        if end - begin < self.seq_len:
            raise UserError(
                f"data.seq_len={self.seq_len}: the text for {split} has only {end - begin} tokens"
            )
        rng = torch.Generator().manual_seed(derive(0, "preferences", split))
        count, room = self.counts[split], end - begin - self.seq_len + 1
        starts = begin + torch.randint(room, (count, 2), generator=rng)
        drawn = windows(text, starts.flatten(), self.seq_len).unflatten(0, (-1, 2))
        prompts, responses = drawn[:, 0, : self.prompt], drawn[:, :, self.prompt :]
        if self.task_settings == PROMPTS:
            return [Pair(self._text(prompt)) for prompt in prompts]
        if self.policy_run is not None:
            responses = self._written(prompts.repeat_interleave(2, 0), rng).unflatten(0, (-1, 2))
        noise = torch.rand(count, generator=rng, dtype=torch.float64).tolist()
        pairs = [
            self._judged(self._text(prompt), [self._text(response) for response in two], chance)
            for prompt, two, chance in zip(prompts, responses, noise, strict=True)
        ]
        if equal := sum(chosen == rejected for _, chosen, rejected in pairs):
            on_first_process(log.warning)(
                "ablate: %d of %d made pairs of the %s split have two equal responses",
                *(equal, count, split),
            )
        return pairs

    def _written(self, prompts: Tensor, rng: torch.Generator) -> Tensor:
        """The responses of the run that writes."""
        model = self.run.model
        assert isinstance(model, LanguageModel)
        responses = []
        for part in prompts.split(AT_ONCE):
            lengths = torch.full((len(part),), part.shape[1])
            rolled = rollout(model, part, lengths, tokens=self.room, rng=rng)
            responses.append(rolled.tokens[:, part.shape[1] :])
        return torch.cat(responses)

    def _judged(self, prompt: str, two: list[str], chance: float) -> Pair:
        """The pair by the rule, with its noise. chance: between 0 and 1."""
        assert self.gold is not None
        first, second = two
        lead = (self.gold(first) - self.gold(second)) / self.temperature
        likely = float(torch.tensor(lead, dtype=torch.float64).sigmoid())
        return Pair(prompt, first, second) if chance < likely else Pair(prompt, second, first)

    def _text(self, tokens: Tensor) -> str:
        return self.source.tokenizer.decode(map(int, tokens))


def _differ(pair: Encoded) -> bool:
    chosen, rejected = pair.texts
    return not np.array_equal(chosen, rejected)


def _lines(text: str, path: str) -> list[tuple[int, str]]:
    """The lines that are not blank, with their numbers from 1."""
    lines = [(n, line) for n, line in enumerate(source.lines(text), 1) if line.strip()]
    if not lines:
        raise UserError(f"data.path={path}: has no pairs")
    return lines


def _pair(line: str, number: int, path: str) -> Pair:
    where = f"data.path={path}: line {number}"
    try:
        read = json.loads(line)
    except ValueError as error:
        raise UserError(f"{where} is not valid JSON ({error})") from None
    texts = [read.get(name) if isinstance(read, dict) else None for name in Pair._fields]
    if not all(isinstance(text, str) and text for text in texts):
        raise UserError(
            f'{where}: must be {{"prompt": TEXT, "chosen": TEXT, "rejected": TEXT}}, none of them'
            " empty"
        )
    pair = Pair(*map(str, texts))
    if any("\ud800" <= character <= "\udfff" for text in pair for character in str(text)):
        raise UserError(f"{where}: contains an unpaired surrogate (\\ud800 to \\udfff)")
    return pair
