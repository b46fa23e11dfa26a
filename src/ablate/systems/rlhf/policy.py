"""The base of DPO and RLHF: a language model trained on preferences, and its divergence from the
reference model."""

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor
from torchmetrics.aggregation import MeanMetric

from ablate.config.conflicts import Conflict
from ablate.config.rules import RunDir
from ablate.data import Batch, Request
from ablate.errors import UserError
from ablate.model.base import LanguageModel
from ablate.random.seeding import derive
from ablate.systems.rlhf.figures import draw_preference
from ablate.systems.rlhf.preferences import Preferences
from ablate.systems.rlhf.reward import Reward
from ablate.systems.rlhf.rollout import Rollout, log_probabilities, rollout
from ablate.task import Task, frozen
from ablate.task.causal_lm import LanguagePresenter
from ablate.task.presenter import write_sample

SHOWN = 3  # prompts of the sample


class PolicyPresenter(LanguagePresenter):
    """Responses to prompts."""

    def sample(self) -> str:
        """Responses of the reference model and of this one to the same prompts."""
        batch = self.first_prompts(SHOWN)
        prompts, scored, lines = prompts_of(batch), [], []
        for name, model in (("reference model", self.task.reference), ("this model", self.model)):
            rolled = self.task.write(model, batch, self.task.generator(0))
            scored.append((name, rolled, self.task.scores(rolled, batch["prompt"])))
        decode = self.data.tokenizer.decode
        for row, length in enumerate(batch["prompt"].tolist()):
            lines.append(f"prompt: {decode(prompts[row, :length].tolist())!r}")
            for name, rolled, scores in scored:
                described = ", ".join(f"{key} {value[row]:.2f}" for key, value in scores.items())
                text = decode(rolled.tokens[row, length : length + self.data.room].tolist())
                lines.append(f"  {name} ({described}): {text!r}")
        return "\n".join(lines)

    def first_prompts(self, count: int) -> Batch:
        rows = torch.arange(min(count, self.data.length("val")))
        batch: Batch = self.data.splits["val"][Request(0, rows)]
        return batch

    def artifacts(self, folder: Path) -> list[Path]:
        written = [write_sample(folder, self.sample())]
        if self.task.reward_run is not None and self.data.gold:
            path = folder / "figures" / "gold_and_reward.png"
            start = self.of_reference()
            written.append(draw_preference(folder / "metrics.csv", path, start, self.data))
        return written

    def of_reference(self) -> Mapping[str, float]:
        """The mean scores of the reference model's responses to the prompts of validation."""
        batch = self.first_prompts(self.data.length("val"))
        rng = self.task.generator(derive(self.task.seed, "rollout"))
        rolled = self.task.write(self.task.reference, batch, rng)
        return {k: float(v.mean()) for k, v in self.task.scores(rolled, batch["prompt"]).items()}


class Policy(Task):
    """Measured on one response to every prompt of a split: gold, the mean score by the rule of the
    data; reward, that by the reward model of the run `reward`; kl, the Kullback-Leibler divergence
    from the reference model, of whole responses, in nats, summed over the tokens and over the
    vocabulary at each of them.

    Responses are as long as the data leaves room: no token ends them.
    """

    kinds = ("preferences between texts",)
    output = "next tokens"
    conflicts: ClassVar[tuple[Conflict, ...]] = (
        Conflict(
            lambda c: c.attribute("model.mask", "looks_ahead"),
            "model.mask={model.mask} attends to later tokens, which do not exist during"
            " generation, and task={task} needs the probabilities of generation; use"
            " model.mask=causal or window",
        ),
        Conflict(
            lambda c: (
                c.option("model.mask") == "prefix"
                and (c("model.mask.size") > c("data.prompt") or c("data.path") is not None)
            ),
            "model.mask.size={model.mask.size} lets tokens of a response see later ones, unless"
            " every prompt has as many tokens; with data.path=null set data.prompt={data.prompt}"
            " or less, or use model.mask=causal",
        ),
    )
    data: Preferences
    model: LanguageModel

    of_process = "a policy is measured on responses to the prompts"
    presenter = PolicyPresenter

    def __init__(self, *args: Any, reward: RunDir | None, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.reference = frozen(self.model)
        self.reward_run = reward
        self.gold, self.reward, self.kl = MeanMetric(), MeanMetric(), MeanMetric()

    @cached_property
    def scorer(self) -> Reward | None:
        """The reward model; no part of this module, so that its weights stay in their own run."""
        from ablate.training.load import load

        if self.reward_run is None:
            return None
        run = load(self.reward_run)
        if not isinstance(run.task, Reward):
            raise UserError(f"task.reward={self.reward_run} is not a run of task=reward")
        # With other tokenizers the numbers of tokens cannot be compared.
        if run.task.data.tokenizer_name == self.data.tokenizer_name:
            for what in ("prompt", "room"):
                most, needed = (getattr(data, what) for data in (run.task.data, self.data))
                if most < needed:
                    part = "prompt" if what == "prompt" else "response"
                    raise UserError(
                        f"task.reward={self.reward_run} reads at most {most} tokens of a {part},"
                        f" and this run has up to {needed}; change data.prompt or data.seq_len here"
                        " or there"
                    )
        return run.task.requires_grad_(False)

    def inputs(self, batch: Batch) -> tuple[Tensor, ...]:
        return (batch["tokens"],)

    def units(self, batch: Batch) -> int:
        return len(batch["prompt"])

    def write(self, model: LanguageModel, batch: Batch, rng: torch.Generator) -> Rollout:
        """A response of the model to the prompt of each row."""
        return rollout(model, prompts_of(batch), batch["prompt"], tokens=self.data.room, rng=rng)

    def generator(self, seed: int) -> torch.Generator:
        return torch.Generator(self.device).manual_seed(seed)

    def scores(self, rolled: Rollout, prompts: Tensor) -> dict[str, Tensor]:
        """The scores of responses, `gold` and `reward`, if there are. prompts: their lengths."""
        decode = self.data.tokenizer.decode
        texts = [
            (decode(row[:length]), decode(row[length : length + self.data.room]))
            for row, length in zip(rolled.tokens.tolist(), prompts.tolist(), strict=True)
        ]
        result = {}
        if self.data.gold:
            gold = [self.data.gold(response) for _, response in texts]
            result["gold"] = torch.tensor(gold, device=self.device)
        if self.scorer is not None:
            scores = self.scorer.to(self.device).scores(*zip(*texts, strict=True))
            result["reward"] = scores.float()
        return result

    def evaluate(self, batch: Batch) -> None:
        rng = self.generator(derive(self.seed, "rollout", int(batch["number"][0])))
        rolled = self.write(self.model, batch, rng)
        for name, scores in self.scores(rolled, batch["prompt"]).items():
            getattr(self, name).update(scores)
        self.kl.update(self.divergence(rolled))

    def divergence(self, rolled: Rollout) -> Tensor:
        """The divergence from the reference model along each response: b."""
        current = log_probabilities(self.model, rolled.tokens)
        reference = log_probabilities(self.reference, rolled.tokens)
        at_each = (current.exp() * (current - reference)).sum(-1)
        return torch.where(rolled.written[:, 1:], at_each, 0.0).sum(1)

    def measures(self, split: str) -> dict[str, Tensor]:
        measures = {"kl": self.kl.compute()}
        if self.data.gold:
            measures["gold"] = self.gold.compute()
        if self.reward_run is not None:
            measures["reward"] = self.reward.compute()
        return measures


def prompts_of(batch: Batch) -> Tensor:
    """A row for each prompt, which may have a response behind it."""
    return batch["tokens"][:: len(batch["tokens"]) // len(batch["prompt"])]


def leave_one_out(rewards: Tensor) -> Tensor:
    """Rewards of k responses to each prompt, b k -> advantages, b k: each less the mean of the
    others (RLOO: Kool et al. 2019; Ahmadian et al. 2024, https://arxiv.org/abs/2402.14740)."""
    k = rewards.shape[1]
    others = (rewards.sum(1, keepdim=True) - rewards) / (k - 1)
    return rewards - others
