"""Reinforcement learning from human feedback: the third phase, a policy gradient on a reward model.

Ziegler et al. 2019, section 2, equation 2 (the penalty), https://arxiv.org/abs/1909.08593; Ouyang
et al. 2022, https://arxiv.org/abs/2203.02155. RLOO: Ahmadian et al. 2024, section 3.2,
https://arxiv.org/abs/2402.14740. PPO: Schulman et al. 2017, equation 7,
https://arxiv.org/abs/1707.06347.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from ablate.config.conflicts import Conflict
from ablate.config.rules import Count, Int, NotNegative, Positive
from ablate.data import Batch, Data
from ablate.figures.maps import Map
from ablate.systems.rlhf.policy import Policy, PolicyPresenter, leave_one_out
from ablate.systems.rlhf.preferences import PROMPTS
from ablate.systems.rlhf.rollout import log_probabilities, of_response
from ablate.task import frozen
from ablate.task.presenter import Draw

CLIP, MINIBATCHES = 0.2, 4


class ResponsePresenter(PolicyPresenter):
    loss_unit = "surrogate"

    def drawer(self, examples: Sequence[dict[str, Any]], maps: Sequence[Map], caption: str) -> Draw:
        shown = self.task.prepared(examples[0])["tokens"][0].tolist()
        labels = self.data.tokenizer.labels(shown)
        return super().drawer([{**examples[0], "labels": labels}], maps, caption)


class RLHF(Policy):
    """A step lets the policy write `samples` responses to each prompt of a batch. The return of a
    response is its reward - kl log(probability / the reference model's); its advantage the return
    less the mean of those of the other responses to the prompt.

    reward: the run of a reward model; null: the rule of the data itself.
    algorithm: rloo, the gradient of the log-probability of each response times its advantage; ppo,
    the same advantages with the clipped ratio of each token's probability to that of the policy
    which wrote, a copy of this one that is renewed every `minibatches` steps: PPO with one pass
    over the responses of a policy, without a learned value.
    clip, minibatches: of ppo; null: `CLIP`, `MINIBATCHES`.

    Rollouts are not among the FLOPs of a step, which are those of the gradient.

    objective: the mean return, by the exact divergence; in addition, the measures of `Policy`.
    """

    of_process = "task=rlhf samples the responses"
    conflicts = (
        Conflict(
            lambda c: (
                c("task.reward") is None
                and c("data.path") is not None
                and c("data.preference_rule") is None
            ),
            "task.reward=null rewards by a rule, and data.path={data.path} has none; set"
            " task.reward=RUN_DIR of a reward model, or data.preference_rule",
        ),
        *(
            Conflict(
                lambda c, key=key: (  # type: ignore[misc]
                    c("task.algorithm") != "ppo" and c(f"task.{key}") is not None
                ),
                f"task.{key}={{task.{key}}} is for task.algorithm=ppo and has no effect with"
                " task.algorithm={task.algorithm}",
            )
            for key in ("clip", "minibatches")
        ),
        *(
            Conflict(
                lambda c, key=key: c(f"model.{key}") > 0,  # type: ignore[misc]
                f"model.{key}={{model.{key}}}: is off while responses are generated, so that"
                f" training would use the probabilities of another policy; set model.{key}=0",
            )
            for key in ("dropout", "drop_path")
        ),
        Conflict(
            lambda c: c.get("pos_enc.randomize", None) is not None,
            "pos_enc.randomize={pos_enc.randomize}: positions are random only in training, which"
            " would use the probabilities of another policy than the one that generated; set"
            " pos_enc.randomize=null",
        ),
        Conflict(
            lambda c: c("model.norm") != "none" and c.declares("model.norm_type", "mixes_examples"),
            "model.norm_type={model.norm_type} behaves differently in training, which would use"
            " the probabilities of another policy than the one that generated; use layer or rms",
        ),
        Conflict(
            lambda c: c.declares("model.normalizer", "samples"),
            "model.normalizer={model.normalizer} samples in training, which would use"
            " the probabilities of another policy than the one that generated; use softmax or"
            " sparsemax",
        ),
        Conflict(
            lambda c: c("debug._target_").endswith("Overfit"),
            "debug=overfit requires a decreasing loss, and task=rlhf has a surrogate loss with only"
            " a meaningful gradient; use debug=fast",
        ),
    )
    metric, mode, unit = "val/objective", "max", "prompts"
    presenter = ResponsePresenter

    def __init__(
        self,
        *args: Any,
        algorithm: Literal["rloo", "ppo"],
        samples: Annotated[int, Int(2)],
        kl: NotNegative,
        clip: Positive | None,
        minibatches: Count | None,
        **kwargs: Any,
    ):
        super().__init__(*args, **kwargs)
        self.samples, self.weight = samples, kl
        self.clip, self.minibatches = clip or CLIP, minibatches or MINIBATCHES
        self.writer = frozen(self.model) if algorithm == "ppo" else None

    @classmethod
    def configure_data(cls, data: Data, **keys: Any) -> None:
        data.task_settings = PROMPTS

    @torch.no_grad()
    def prepare(self, batch: Batch, step: int) -> Batch:
        tokens = batch["tokens"]
        if not batch["prompt"].all():  # a user's text, which has no prompt, is shown as it is
            return {"tokens": tokens}
        if next(self.model.parameters()).is_meta:  # to be counted, not computed
            shape = (
                self.samples * len(batch["prompt"]),
                int(batch["prompt"].max()) + self.data.room,
            )
            return {"tokens": tokens.new_zeros(shape)}
        writer = self.model
        if self.writer is not None:
            writer = self.writer
            if step % self.minibatches == 0:
                writer.load_state_dict(self.model.state_dict())
        several = {
            name: batch[name].repeat_interleave(self.samples, 0) for name in ("tokens", "prompt")
        }
        rng = self.generator(int(torch.randint(2**62, ())))  # which this step has seeded
        tokens, written = rolled = self.write(writer, several, rng)
        old, first = (
            of_response(log_probabilities(model, tokens), tokens, written)
            for model in (writer, self.reference)
        )
        scores = self.scores(rolled, several["prompt"])
        reward = scores["gold" if self.reward_run is None else "reward"]
        returns = reward - self.weight * (old - first).sum(1)
        advantages = leave_one_out(returns.view(-1, self.samples)).flatten()
        return {"tokens": tokens, "written": written, "old": old, "advantages": advantages}

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        tokens = batch["tokens"]
        new = of_response(log_probabilities(self.model, tokens), tokens, batch["written"])
        if self.writer is None:
            return {"loss": policy_gradient(new, batch["advantages"])}
        return {"loss": clipped(new, batch["old"], batch["advantages"], self.clip)}

    def measures(self, split: str) -> dict[str, Tensor]:
        measures = super().measures(split)
        reward = measures["gold" if self.reward_run is None else "reward"]
        return measures | {"objective": reward - self.weight * measures["kl"]}


def policy_gradient(new: Tensor, advantages: Tensor) -> Tensor:
    """The mean over responses of minus the advantage times the log-probability (Williams 1992).

    new: b i, log-probabilities of the tokens of each response, 0 elsewhere. advantages: b.
    """
    return -(advantages * new.sum(1)).mean()


def clipped(new: Tensor, old: Tensor, advantages: Tensor, clip: float) -> Tensor:
    """PPO's clipped surrogate, summed over the tokens of a response, for which the gradient at
    new = old is that of `policy_gradient`. old: log-probabilities by the policy that wrote."""
    ratio, advantages = (new - old).exp(), advantages[:, None]
    held = ratio.clamp(1 - clip, 1 + clip)
    # Outside of a response both log-probabilities are 0, and the constant has no gradient.
    return -torch.minimum(ratio * advantages, held * advantages).sum(1).mean()
