"""Direct preference optimization: a language model from pairs, without a reward model or rollouts.

Rafailov et al. 2023, section 4, equation 7, https://arxiv.org/abs/2305.18290.
"""

from typing import Any

import torch
from torch import Tensor
from torchmetrics.aggregation import MeanMetric

from ablate.config.rules import Positive
from ablate.data import Batch
from ablate.model.base import LanguageModel
from ablate.systems.rlhf.policy import Policy
from ablate.systems.rlhf.reward import agreement, unlikelihood
from ablate.systems.rlhf.rollout import log_probabilities, of_response


class DPO(Policy):
    """-log sigmoid(beta (log ratio of the chosen response - that of the rejected one)), with ratios
    of this model's probability to the first one's; beta weighs the divergence from it.

    accuracy: the share of pairs whose chosen response has the higher ratio. In addition, the
    measures of `Policy` measures, reward only with the run of a reward model.
    """

    metric, mode, unit = "val/loss", "min", "pairs"

    def __init__(self, *args: Any, beta: Positive, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.beta = beta
        self.mean_loss, self.accuracy = MeanMetric(), MeanMetric()

    def ratios(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The log ratios of the chosen responses and of the rejected ones: b and b."""
        tokens = batch["tokens"]
        start = batch["prompt"].repeat_interleave(2)[:, None]
        written = batch["keep"] & (torch.arange(tokens.shape[1], device=tokens.device) >= start)

        def of(model: LanguageModel) -> Tensor:
            return of_response(log_probabilities(model, tokens), tokens, written).sum(1)

        with torch.no_grad():
            reference = of(self.reference)
        chosen, rejected = (of(self.model) - reference).view(-1, 2).unbind(1)
        return chosen, rejected

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        return {"loss": dpo_loss(*self.ratios(batch), self.beta).mean()}

    def evaluate(self, batch: Batch) -> None:
        super().evaluate(batch)
        chosen, rejected = self.ratios(batch)
        self.mean_loss.update(dpo_loss(chosen, rejected, self.beta))
        self.accuracy.update(agreement(chosen - rejected))

    def measures(self, split: str) -> dict[str, Tensor]:
        measures = {"loss": self.mean_loss.compute(), "accuracy": self.accuracy.compute()}
        return measures | super().measures(split)


def dpo_loss(chosen: Tensor, rejected: Tensor, beta: float) -> Tensor:
    """Of each pair, by its log ratios."""
    return unlikelihood(beta * (chosen - rejected))
