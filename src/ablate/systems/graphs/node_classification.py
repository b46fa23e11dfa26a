"""Node classification: the class of every node of a graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch.nn.functional as F
from torch import Tensor
from torchmetrics.aggregation import MeanMetric
from torchmetrics.classification import MulticlassAccuracy, MulticlassConfusionMatrix

from ablate.data import IGNORED, Batch
from ablate.figures.maps import Map
from ablate.systems.graphs.figures import graph_drawer
from ablate.systems.graphs.graph import Graphs
from ablate.task import Task
from ablate.task.classification import balanced_accuracy
from ablate.task.presenter import Draw, Presenter


class NodePresenter(Presenter):
    """Attention over a graph."""

    def drawer(self, examples: Sequence[dict[str, Any]], maps: Sequence[Map], caption: str) -> Draw:
        return graph_drawer(self.data, examples[0], maps)


class NodeClassification(Task):
    """Cross-entropy over the labeled nodes; the model also reads the others, without their classes
    (transductive learning: Yang et al. 2016, https://arxiv.org/abs/1603.08861)."""

    kinds = ("a graph",)
    output = "classes of nodes"
    metric, mode, unit = "val/accuracy", "max", "nodes"
    presenter = NodePresenter
    data: Graphs

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.mean_loss = MeanMetric()
        classes = len(self.data.class_names)
        self.accuracy = MulticlassAccuracy(classes, average="micro")
        self.confusion = MulticlassConfusionMatrix(classes)

    def inputs(self, batch: Batch) -> tuple[Tensor, ...]:
        return batch["features"], batch["edges"]

    def units(self, batch: Batch) -> int:
        return len(batch["features"])

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        return {"loss": F.cross_entropy(self.model(*self.inputs(batch)), batch["targets"])}

    def evaluate(self, batch: Batch) -> None:
        counted = batch["targets"] != IGNORED
        logits = self.model(*self.inputs(batch)).float()[counted]
        targets = batch["targets"][counted]
        self.mean_loss.update(F.cross_entropy(logits, targets), len(targets))
        self.accuracy.update(logits, targets)
        self.confusion.update(logits, targets)

    def measures(self, split: str) -> dict[str, Tensor]:
        return {
            "loss": self.mean_loss.compute(),
            "accuracy": self.accuracy.compute(),
            "balanced_accuracy": balanced_accuracy(self.confusion.compute()),
        }
