"""A reward model: a score for a text, from pairs of a preferred and a rejected text.

Stiennon et al. 2020, "Learning to summarize from human feedback", section 3.4,
https://arxiv.org/abs/2009.01325; Ouyang et al. 2022, InstructGPT, section 3.5, equation 1,
https://arxiv.org/abs/2203.02155.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torchmetrics.aggregation import MeanMetric

from ablate.config.conflicts import Conflict
from ablate.data import Batch, Data
from ablate.figures.maps import Map
from ablate.systems.rlhf.preferences import SCORES, Preferences, padded
from ablate.task import Task
from ablate.task.causal_lm import opening
from ablate.task.presenter import Draw, Presenter, filled

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class RewardPresenter(Presenter):
    """Scores of texts."""

    family = "reward"
    options = {"prompt": {"type": filled, "help": "text to score"}}
    example_options = '--prompt "A text to score."'

    def generate(self, arguments: Mapping[str, Any], folder: Path) -> Iterable[str]:
        text = arguments.get("prompt") or opening(self.data)
        yield f"{self.scored(self.data.from_text(text)):.4f}\t{text}"

    @torch.no_grad()
    def scored(self, example: dict[str, Any]) -> float:
        """The score of the first text of an example."""
        return float(self.model(*self.task.inputs(example))[0])

    def drawer(self, examples: Sequence[dict[str, Any]], maps: Sequence[Map], caption: str) -> Draw:
        draw = super().drawer(examples, maps, caption)
        score = self.scored(examples[0])

        def scored(map_: Map, heads: Sequence[int]) -> "Figure":
            figure = draw(map_, heads)
            figure.supxlabel(f"score of this text: {score:.3f}", fontsize=9)
            return figure

        return scored


class Reward(Task):
    """-log sigmoid(score of the chosen text - score of the rejected one), the likelihood of the
    preferences in the model of Bradley and Terry; the score is one number, read at the last token.

    accuracy: the share of pairs whose chosen text has the higher score. If the preferences are
    those of a rule, also rule_accuracy, the same for the text that the rule scores higher, and
    ceiling, the share of pairs whose preference agrees with the rule: no model that learns the rule
    exceeds it in `accuracy` by more than chance. Ties count half.
    """

    kinds = ("preferences between texts",)
    output = "scores"
    conflicts = (
        Conflict(
            lambda c: not c("model.tie_embeddings"),
            "model.tie_embeddings=false concerns an output map over tokens, which a reward model"
            " does not have; leave it at true",
        ),
    )
    metric, mode, unit = "val/loss", "min", "pairs"
    # A causal language model may start a reward model that reads in both directions.
    may_differ: ClassVar[tuple[str, ...]] = ("model.mask",)
    presenter = RewardPresenter
    data: Preferences

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.mean_loss, self.accuracy = MeanMetric(), MeanMetric()
        self.rule_accuracy, self.ceiling = MeanMetric(), MeanMetric()

    @classmethod
    def configure_data(cls, data: Data, **keys: Any) -> None:
        data.task_settings = SCORES

    def inputs(self, batch: Batch) -> tuple[Tensor, ...]:
        return batch["tokens"], batch["keep"]

    def units(self, batch: Batch) -> int:
        return len(batch["prompt"])

    def leads(self, batch: Batch) -> Tensor:
        """The score of the chosen text less that of the rejected one: b."""
        chosen, rejected = self.model(*self.inputs(batch)).float().view(-1, 2).unbind(1)
        return chosen - rejected

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        return {"loss": unlikelihood(self.leads(batch)).mean()}

    def evaluate(self, batch: Batch) -> None:
        lead = self.leads(batch)
        self.mean_loss.update(unlikelihood(lead))
        self.accuracy.update(agreement(lead))
        if self.data.gold:
            by_rule = batch["gold"][:, 0] - batch["gold"][:, 1]
            self.rule_accuracy.update(agreement(lead * by_rule))
            self.ceiling.update(agreement(by_rule))

    def measures(self, split: str) -> dict[str, Tensor]:
        measures = {"loss": self.mean_loss.compute(), "accuracy": self.accuracy.compute()}
        if self.data.gold:
            measures["rule_accuracy"] = self.rule_accuracy.compute()
            measures["ceiling"] = self.ceiling.compute()
        return measures

    @torch.no_grad()
    def scores(self, prompts: Sequence[str], responses: Sequence[str]) -> Tensor:
        """The score of each response to its prompt, by a model in evaluation mode."""
        texts = [
            self.data.encoded(prompt, response).texts[0]
            for prompt, response in zip(prompts, responses, strict=True)
        ]
        tokens, keep = padded(texts)
        scores: Tensor = self.model(tokens.to(self.device), keep.to(self.device))
        return scores.squeeze(1)


def unlikelihood(lead: Tensor) -> Tensor:
    """-log sigmoid(lead), the negative log likelihood of a preference for the response whose score
    is higher by `lead`, in the model of Bradley and Terry."""
    return -F.logsigmoid(lead)


def agreement(product: Tensor) -> Tensor:
    """Agreement of two orders, from the product of their differences: 1, 0, or 1/2 for ties."""
    return (product.sign() + 1) / 2
