"""Classification: one class for each image or text."""

from typing import Any, ClassVar

import numpy as np
import torch.nn.functional as F
from torch import Tensor
from torchmetrics.aggregation import MeanMetric
from torchmetrics.classification import MulticlassAccuracy, MulticlassStatScores

from ablate.config.facts import LABELLED, Conflict
from ablate.config.rules import NotNegative, Share
from ablate.data import Batch
from ablate.data.images import Images
from ablate.data.loader import share_of
from ablate.data.text_files import TextFiles
from ablate.errors import UserError
from ablate.random.seeding import derive
from ablate.task import Task

TOP = 5


class Classification(Task):
    """Cross-entropy; accuracy, top-5 accuracy (with more than five classes), per-class accuracy.

    Label smoothing, Mixup (https://arxiv.org/abs/1710.09412) and CutMix
    (https://arxiv.org/abs/1905.04899) act in training only; `mixup` and `cutmix` are the alpha of
    their beta distributions, and if both are on, each batch gets one of them.
    """

    kinds = ("images", "texts with classes")
    output = "classes"
    conflicts = (
        Conflict(
            lambda c: c.kind == LABELLED and not c("model.tie_embeddings"),
            "model.tie_embeddings=false concerns an output map over tokens, which a classifier"
            " does not have; leave it at true",
        ),
        Conflict(
            lambda c: c.kind == LABELLED and max(c("task.mixup"), c("task.cutmix")) > 0,
            "task.mixup and task.cutmix mix images, and data={data} is {:words}",
        ),
        Conflict(
            lambda c: max(c("task.mixup"), c("task.cutmix")) > 0 and c("data.batch_size") % 2 != 0,
            "task.mixup and task.cutmix mix pairs: data.batch_size={data.batch_size} must be even",
        ),
    )
    metric: ClassVar[str] = "val/accuracy"
    mode: ClassVar[str] = "max"
    unit = "images"  # or texts
    data: Images | TextFiles

    def __init__(
        self,
        *args: Any,
        label_smoothing: Share,
        mixup: NotNegative,
        cutmix: NotNegative,
        **kwargs: Any,
    ):
        super().__init__(*args, **kwargs)
        self.unit = self.data.unit
        self.label_smoothing = label_smoothing
        classes = self.data.sizes["classes"]
        self.mix = None
        if mixup or cutmix:
            from timm.data import Mixup  # imports all of timm

            self.mix = Mixup(mixup, cutmix, label_smoothing=label_smoothing, num_classes=classes)
            self.of_process = "task.mixup and task.cutmix mix the images"
        self.mean_loss = MeanMetric()
        self.accuracy = MulticlassAccuracy(classes, average="micro")
        self.top = (
            MulticlassAccuracy(classes, average="micro", top_k=TOP) if classes > TOP else None
        )
        self.by_class = MulticlassStatScores(classes, average=None)

    def setup(self, stage: str) -> None:
        processes = share_of(self.trainer).world
        if stage == "fit" and self.mix is not None and self.data.batch_size % (2 * processes):
            raise UserError(
                f"data.batch_size={self.data.batch_size}: task.mixup and task.cutmix mix pairs, so "
                f"it must be a multiple of {2 * processes}, twice the processes that share it "
                f"(trainer.devices times trainer.num_nodes)"
            )

    def inputs(self, batch: Batch) -> tuple[Tensor, ...]:
        return tuple(batch[name] for name in self.data.reads)

    def units(self, batch: Batch) -> int:
        return len(batch["targets"])

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        super().on_train_batch_start(batch, batch_idx)
        # timm's Mixup draws from numpy.
        np.random.seed(derive(self.seed, "mixup", batch_idx, share_of(self.trainer).rank) % 2**32)

    def loss(self, batch: Batch) -> Tensor:
        targets = batch["targets"]
        if self.mix is not None:  # soft targets, already smoothed
            images, targets = self.mix(batch["images"].clone(), targets)
            logits = self.model(images)
            return F.cross_entropy(logits, targets.to(logits.dtype))
        logits = self.model(*self.inputs(batch))
        return F.cross_entropy(logits, targets, label_smoothing=self.label_smoothing)

    def evaluate(self, batch: Batch) -> None:
        logits, targets = self.model(*self.inputs(batch)).float(), batch["targets"]
        self.mean_loss.update(F.cross_entropy(logits, targets), len(targets))
        self.accuracy.update(logits, targets)
        self.by_class.update(logits, targets)
        if self.top is not None:
            self.top.update(logits, targets)

    def predictions(self, batch: Batch) -> dict[str, Tensor]:
        logits, targets = self.model(*self.inputs(batch)).float(), batch["targets"]
        loss = F.cross_entropy(logits, targets, reduction="none")
        return {"loss": loss, "target": targets, "predicted": logits.argmax(-1)}

    def measures(self, split: str) -> dict[str, Tensor]:
        values = {"loss": self.mean_loss.compute(), "accuracy": self.accuracy.compute()}
        if self.top is not None:
            values[f"top{TOP}"] = self.top.compute()
        for name, (right, *_, examples) in zip(
            self.data.class_names, self.by_class.compute(), strict=True
        ):
            if examples:  # a split may lack a class
                values[f"accuracy/{name}"] = right / examples
        return values

    def measured(self, split: str) -> list[str]:
        names = super().measured(split)
        return [*names, *(f"accuracy/{name}" for name in self.data.class_names)] if names else []
