"""Classification: one class for each image or text."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torchmetrics.aggregation import MeanMetric
from torchmetrics.classification import MulticlassAccuracy, MulticlassConfusionMatrix

from ablate.config.conflicts import Conflict
from ablate.config.rules import NotNegative, Share
from ablate.config.view import LABELED
from ablate.data import Batch
from ablate.data.images import Images
from ablate.data.text_files import TextFiles
from ablate.errors import UserError
from ablate.figures.panels import Panel, draw_panels
from ablate.figures.save import save
from ablate.random.seeding import derive
from ablate.run_files import write_csv
from ablate.task import Task
from ablate.task.presenter import Presenter

TOP = 5
DRAWN = 64  # classes of a confusion matrix that is drawn
INCHES = 0.22  # of a class there


class ClassPresenter(Presenter):
    """Predicted classes, and confusion matrices."""

    def predictions(self, batch: Batch) -> dict[str, Tensor]:
        logits, targets = self.model(*self.task.inputs(batch)).float(), batch["targets"]
        loss = F.cross_entropy(logits, targets, reduction="none")
        return {"loss": loss, "target": targets, "predicted": logits.argmax(-1)}

    def notes(self) -> dict[str, Any]:
        names, examples = self.data.class_names, {}
        for split, data in self.data.splits.items():
            if (targets := getattr(data, "targets", None)) is not None:  # ours have them
                counts = targets.bincount(minlength=len(names)).tolist()
                examples[split] = dict(zip(names, counts, strict=True))
        return {"examples": examples}

    def artifacts(self, folder: Path) -> list[Path]:
        """The confusion matrices: tables with a row for each true class and a column for each
        predicted one, and a figure of their shares."""
        names, paths, panels = self.data.class_names, [], []
        for split, matrix in self.task.matrices.items():
            rows = ([name, *row] for name, row in zip(names, matrix.tolist(), strict=True))
            paths.append(folder / f"confusion_{split}.csv")
            write_csv(paths[-1], [["true class", *names], *rows])
            shares = (matrix / matrix.sum(1, keepdim=True).clamp(min=1)).cpu()
            panels.append(Panel(split, shares, names, names, torch.ones_like(shares).bool()))
        if panels and len(names) <= DRAWN:
            figure = draw_panels(
                panels,
                "Predicted class (columns) by true class (rows)",
                query="true class",
                key="predicted class",
                cell=INCHES,
                measure="share of the true class",
            )
            paths.append(save(figure, folder / "figures" / "confusion.png"))
        return paths


class Classification(Task):
    """Cross-entropy; accuracy, top-5 accuracy (with more than five classes), per-class accuracy and
    its mean, balanced accuracy. A run keeps the confusion matrices of validation and test, and the
    number of examples of each class in every split.

    Label smoothing, Mixup (https://arxiv.org/abs/1710.09412) and CutMix
    (https://arxiv.org/abs/1905.04899) act in training only; `mixup` and `cutmix` are the alpha of
    their beta distributions, and if both are on, each batch gets one of them.
    """

    kinds = ("images", "texts with classes")
    output = "classes"
    conflicts = (
        Conflict(
            lambda c: c.kind == LABELED and not c("model.tie_embeddings"),
            "model.tie_embeddings=false concerns an output map over tokens, which a classifier"
            " does not have; leave it at true",
        ),
        Conflict(
            lambda c: c.kind == LABELED and max(c("task.mixup"), c("task.cutmix")) > 0,
            "task.mixup and task.cutmix mix images, and data={data} is {:data.kind}",
        ),
        Conflict(
            lambda c: max(c("task.mixup"), c("task.cutmix")) > 0 and c("data.batch_size") % 2 != 0,
            "task.mixup and task.cutmix mix pairs: data.batch_size={data.batch_size} must be even",
        ),
    )
    metric, mode, unit = "val/accuracy", "max", "images"  # or texts
    presenter = ClassPresenter
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
        classes = self.data.sizes.classes
        assert classes is not None
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
        self.confusion = MulticlassConfusionMatrix(classes)
        self.matrices: dict[str, Tensor] = {}  # of each split, as last measured

    def setup(self, stage: str) -> None:
        processes = self.trainer.world_size
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
        np.random.seed(derive(self.seed, "mixup", batch_idx, self.trainer.global_rank) % 2**32)

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        targets = batch["targets"]
        if self.mix is not None and self.training:  # soft targets, already smoothed
            images, targets = self.mix(batch["images"].clone(), targets)
            logits = self.model(images)
            return {"loss": F.cross_entropy(logits, targets.to(logits.dtype))}
        logits = self.model(*self.inputs(batch))
        return {"loss": F.cross_entropy(logits, targets, label_smoothing=self.label_smoothing)}

    def evaluate(self, batch: Batch) -> None:
        logits, targets = self.model(*self.inputs(batch)).float(), batch["targets"]
        self.mean_loss.update(F.cross_entropy(logits, targets), len(targets))
        self.accuracy.update(logits, targets)
        self.confusion.update(logits, targets)
        if self.top is not None:
            self.top.update(logits, targets)

    def measures(self, split: str) -> dict[str, Tensor]:
        values = {"loss": self.mean_loss.compute(), "accuracy": self.accuracy.compute()}
        if self.top is not None:
            values[f"top{TOP}"] = self.top.compute()
        matrix = self.matrices[split] = self.confusion.compute()
        values["balanced_accuracy"] = balanced_accuracy(matrix)
        names = self.data.class_names
        for name, right, examples in zip(names, matrix.diagonal(), matrix.sum(1), strict=True):
            if examples or not matrix.any():  # a split may lack a class
                values[f"accuracy/{name}"] = right / examples
        return values


def balanced_accuracy(matrix: Tensor) -> Tensor:
    """The mean accuracy of the classes that occur, from counts of true x predicted."""
    examples = matrix.sum(1)
    return (matrix.diagonal() / examples)[examples > 0].mean()
