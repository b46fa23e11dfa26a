"""Associative recall: predict the value of an earlier key (Arora et al. 2023, Zoology)."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import ModuleDict
from torchmetrics.aggregation import MeanMetric

from ablate.data import IGNORED, Batch
from ablate.data import recall as data
from ablate.task.causal_lm import CausalLM


class Recall(CausalLM):
    """Cross-entropy and accuracy at the queries only; accuracy by number of pairs."""

    kinds = ("recall",)
    output = "next tokens"
    metric, mode = "val/accuracy", "max"

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        assert isinstance(self.data, data.Recall)
        self.mean_loss = MeanMetric()
        self.by_pairs: Any = ModuleDict({str(pairs): MeanMetric() for pairs in self.data.pairs})

    def evaluate(self, batch: Batch) -> None:
        logits, targets = self.model(batch["tokens"]), batch["targets"]
        counted = targets != IGNORED
        loss = F.cross_entropy(logits[counted].float(), targets[counted])
        self.mean_loss.update(loss, counted.sum())
        right = (logits.argmax(-1) == targets) & counted
        for pairs, metric in self.by_pairs.items():
            rows = batch["group"] == int(pairs)
            metric.update(right[rows][counted[rows]].float())

    def measures(self, split: str) -> dict[str, Tensor]:
        means = {pairs: metric.compute() for pairs, metric in self.by_pairs.items()}
        # Every number of pairs has the same weight, regardless of its number of queries.
        overall = torch.stack(list(means.values())).mean()
        return {
            "loss": self.mean_loss.compute(),
            "accuracy": overall,
            **{f"accuracy/{pairs}_pairs": value for pairs, value in means.items()},
        }
