"""Preferences that are generated: a rule compares two responses to each prompt, in place of people.

The responses are those of a finished run (`self.policy_run`), or passages of Python's help: the one
that follows the prompt, and one from elsewhere. The rule (preference_rules.py) errs as people do:
the first response is chosen with probability sigmoid((score - score of the other) / temperature),
the model of Bradley and Terry 1952 (Biometrika 39), which a reward model's loss assumes.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from lightning.pytorch.utilities import rank_zero_only as on_first_process
from torch import Tensor

from ablate.config.run_id import NO_WEIGHTS, weights
from ablate.data import digest
from ablate.data.pydoc import Pydoc
from ablate.data.shards import windows
from ablate.data.text import TokenData
from ablate.data.tokenizer import Tokenizer, TokenizerName
from ablate.errors import UserError
from ablate.model.base import LanguageModel
from ablate.random.seeding import derive
from ablate.systems.rlhf.pair_file import Pair
from ablate.systems.rlhf.rollout import rollout

log = logging.getLogger(__name__)
COUNTS = {"train": 2048, "val": 512, "test": 512}  # pairs
AT_ONCE = 256  # responses that are written together


@dataclass(kw_only=True)
class GeneratedPairs:
    """The fields are options of Preferences, but for: gold, the rule; counts, the pairs of each
    split; only_prompts, whether the task reads no responses; new_tokenizer, whether the model has
    no tokenizer yet, so that it must be that of the texts.
    """

    policy_run: str | None
    tokenizer_name: TokenizerName
    vocab_size: int | None
    seq_len: int
    prompt: int
    temperature: float
    gold: Callable[[str], float]
    counts: Mapping[str, int]
    only_prompts: bool
    new_tokenizer: bool

    def fingerprint(self) -> str:
        if self.policy_run is None:
            return digest(self._help.fingerprint(), self.counts)
        if (written_by := weights(self.policy_run)) == NO_WEIGHTS:
            raise UserError(
                f"data.policy_run={self.policy_run} is not a run directory with weights"
            )
        return digest(written_by, self.counts)

    def tokenizer(self) -> Tokenizer:
        return self.text.tokenizer

    @cached_property
    def _help(self) -> Pydoc:
        return Pydoc(
            tokenizer=self.tokenizer_name,
            vocab_size=self.vocab_size,
            seq_len=self.seq_len,
            batch_size=1,
            val_fraction=0.1,
            seed=0,
        )

    @cached_property
    def text(self) -> TokenData:
        """The data whose passages are prompts."""
        text = self._help if self.policy_run is None else self._written[1]
        text.setup()
        return text

    @cached_property
    def _written(self) -> tuple[LanguageModel, TokenData]:
        """The model that writes, and its data."""
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
        if self.new_tokenizer:
            ours: dict[str, str | int] = {"tokenizer": self.tokenizer_name}
            if self.vocab_size is not None:
                ours["vocab_size"] = self.vocab_size
            for key, value in ours.items():
                if (its := run.config.data.get(key)) != value:
                    raise UserError(
                        f"data.{key}={value}: the texts of data.policy_run={self.policy_run} have"
                        f" the tokens of its run; set data.{key}={'null' if its is None else its}"
                    )
        return run.model, run.data

    def pairs(self, split: str) -> list[Pair]:
        """Prompts from the training part of the text, or from a half of the validation part."""
        text = self.text.tokens["train" if split == "train" else "val"]
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
        if self.only_prompts:
            return [Pair(self._decode(prompt)) for prompt in prompts]
        if self.policy_run is not None:
            responses = self._write(prompts.repeat_interleave(2, 0), rng).unflatten(0, (-1, 2))
        noise = torch.rand(count, generator=rng, dtype=torch.float64).tolist()
        pairs = [
            self._judged(self._decode(prompt), [self._decode(each) for each in two], chance)
            for prompt, two, chance in zip(prompts, responses, noise, strict=True)
        ]
        if equal := sum(chosen == rejected for _, chosen, rejected in pairs):
            on_first_process(log.warning)(
                "ablate: %d of %d made pairs of the %s split have two equal responses",
                *(equal, count, split),
            )
        return pairs

    def _write(self, prompts: Tensor, rng: torch.Generator) -> Tensor:
        """The responses of the model that writes."""
        responses, room = [], self.seq_len - self.prompt
        for part in prompts.split(AT_ONCE):
            lengths = torch.full((len(part),), self.prompt)
            rolled = rollout(self._written[0], part, lengths, tokens=room, rng=rng)
            responses.append(rolled.tokens[:, self.prompt :])
        return torch.cat(responses)

    def _judged(self, prompt: str, two: list[str], chance: float) -> Pair:
        """The pair by the rule, with its noise. chance: between 0 and 1."""
        first, second = two
        lead = (self.gold(first) - self.gold(second)) / self.temperature
        likely = float(torch.tensor(lead, dtype=torch.float64).sigmoid())
        return Pair(prompt, first, second) if chance < likely else Pair(prompt, second, first)

    def _decode(self, tokens: Tensor) -> str:
        return self.text.tokenizer.decode(map(int, tokens))
