"""Promptable segmentation: the mask of an object from clicks or a box."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torchmetrics.aggregation import MeanMetric
from torchmetrics.segmentation import MeanIoU
from torchvision.ops import sigmoid_focal_loss

from ablate.config.rules import Count, Positive, Probability
from ablate.data import Batch, Data
from ablate.errors import UserError
from ablate.figures.save import save
from ablate.random.draws import Source, uniform
from ablate.systems.segmentation.figures import Answered, draw_answers
from ablate.systems.segmentation.prompts import (
    FIRST,
    PADDING,
    box_prompt,
    correction,
    error_depths,
    first_click,
    largest,
)
from ablate.systems.segmentation.sam import SAM, Prompt, chosen, picked
from ablate.systems.segmentation.segment import image_files, write_mask
from ablate.systems.segmentation.segments import Clicks, Segments
from ablate.task import Task
from ablate.task.presenter import INDEX, Presenter, val_example

DRAWN = 4  # examples in the figure of a run
FIRST_POINT, FIRST_KIND = 0, 1  # uses of the random stream; of a click those after
NO_MASK = -1e4  # a logit whose sigmoid is 0 in any precision, and which any precision has


class MaskPresenter(Presenter):
    """Masks of objects."""

    family = "segmentation"
    options = {
        "index": {
            **INDEX,
            "help": "index of a validation example, from 0, which is prompted automatically, at the"
            " largest error (default: 0)",
        },
        "image": {"action": "append", "help": "image to segment (repeatable)"},
        "point": {"action": "append", "help": "point on the object: X,Y in pixels (repeatable)"},
        "background": {
            "action": "append",
            "help": "point outside the object: X,Y in pixels (repeatable)",
        },
        "box": {"help": "box around the object: X0,Y0,X1,Y1 in pixels"},
    }
    example_options = "--index 0"

    @torch.no_grad()
    def demonstrated(self, index: int) -> Answered:
        """A validation example, with the clicks that are measured and their masks."""
        numbered = val_example(self.data, index)
        example = {name: x.to(self.task.device) for name, x in numbered.items()}
        clicks, logits, iou = self.task.clicked(example)
        masks, truth = picked(logits, iou), example["masks"][0]
        marks = [(*point[0].tolist(), int(label)) for point, label in clicks]
        return Answered(
            image=self.data.visible(example["images"][0].cpu()),
            masks=masks,
            titles=[
                f"{n} click{'s' * (n > 1)}: IoU {overlap(mask, truth.cpu()):.2f}"
                for n, mask in enumerate(masks, 1)
            ],
            clicks=[click for click in marks if click[2] != PADDING],
            box=None,
            truth=truth.cpu(),
            name=f"example {index}" + (", class never seen" if example["unfamiliar"] else ""),
        )

    def artifacts(self, folder: Path) -> list[Path]:
        """The first validation examples click by click."""
        count = min(DRAWN, self.data.length("val"))
        answers = [self.demonstrated(index) for index in range(count)]
        title = (
            "Validation objects: the predicted mask after each click; each further click is at the"
            " largest error of the previous mask"
        )
        return [save(draw_answers(answers, title), folder / "figures" / "masks.png")]

    def generate(self, arguments: Mapping[str, Any], folder: Path) -> Iterator[str]:
        """The lines for --index, or for --image with a prompt; the first image of the validation
        split without either."""
        if files := image_files(arguments):
            for file in files:
                yield from write_mask(self.model, self.data, arguments, file, folder)
        else:
            yield from self._demonstrate(arguments.get("index", 0), folder)

    def _demonstrate(self, index: int, folder: Path) -> Iterator[str]:
        answer = self.demonstrated(index)
        yield from answer.titles
        title = "Predicted mask after each click, each at the largest error of the previous mask"
        yield str(save(draw_answers([answer], title), folder / "figures" / f"masks_{index}.png"))


class Segmentation(Task):
    """Interactive segmentation as in Kirillov et al. 2023, https://arxiv.org/abs/2304.02643.

    Training (appendix A, "Losses" and "Training algorithm"): after each prompt the focal loss
    (alpha 0.25, gamma 2) and the dice loss of the mask with the least loss, and the squared
    error of every predicted IoU. The first prompt is a pixel of the object or its box, the next
    clicks are pixels of the error of the chosen mask, all sampled uniformly. There it is jittered
    and two of 11 prompts are only the mask.

    Measures (section 7.1): a click is in the middle of the object, or of its largest error: the
    pixel farthest from the boundary (appendix D.2). miou_N: mean IoU after N clicks of the chosen
    mask, the one with the largest predicted IoU; oracle_N: of the best mask; miou_box: from a box
    only. unfamiliar/...: the same of objects of classes that training has none of, which are not
    in the others. iou_error: mean absolute error of the predicted IoU of the chosen mask after a
    click.
    """

    kinds = ("images with masks",)
    output = "masks"
    metric, mode, unit = "val/miou_1", "max", "objects"
    presenter = MaskPresenter
    data: Segments
    model: SAM

    def __init__(
        self,
        *args: Any,
        clicks: Count,
        boxes: Probability,
        focal: Positive,
        iou: Positive,
        **kwargs: Any,
    ):
        super().__init__(*args, **kwargs)
        self.clicks, self.boxes, self.focal, self.iou = clicks, boxes, focal, iou
        numbered = (f"{of}_{n + 1}" for of in ("miou", "oracle") for n in range(clicks))
        self.names = [*numbered, "miou_box"]
        groups = ("", "unfamiliar/") if self.data.unfamiliar else ("",)
        self.scores = nn.ModuleDict(
            {group + name: MeanIoU(num_classes=1) for group in groups for name in self.names}
        )
        self.mean_loss, self.iou_error = MeanMetric(), MeanMetric()

    @classmethod
    def configure_data(cls, data: Data, **keys: Any) -> None:
        data.task_settings = Clicks(keys["clicks"])

    def setup(self, stage: str) -> None:
        if stage == "fit" and self.data.unfamiliar:
            loader: Any = self.data.val_dataloader()
            measured = loader.sampler.order.examples
            if loader.dataset.unfamiliar[measured].all():
                raise UserError(
                    f"trainer.val_examples={len(measured)}: training has no objects of their"
                    f" classes (data.unfamiliar), so {self.metric} would have no value; choose more"
                )

    def inputs(self, batch: Batch) -> tuple[Tensor, ...]:
        return batch["images"], batch["points"], batch["labels"]

    def units(self, batch: Batch) -> int:
        return len(batch["masks"])

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        masks, use = batch["masks"], iter(range(FIRST_KIND + 1, FIRST_KIND + self.clicks))

        def correct(logits: Tensor, iou: Tensor) -> Prompt:
            predicted = chosen(logits, iou)[:, 0] > 0
            return correction(predicted, masks, self.drawn(masks, next(use)))

        answers = self.answers(batch, self.first_prompt(masks), correct)
        return self.measured_losses(*answers, masks, batch.get("void"))

    def measured_losses(
        self, logits: Tensor, iou: Tensor, masks: Tensor, void: Tensor | None = None
    ) -> dict[str, Tensor]:
        """Of masks after every prompt, b r m y x, and their predicted IoU, b r m. void: b y x."""
        logits = logits.float()
        truth = masks[:, None, None].expand_as(logits).float()
        focal = self.focal * sigmoid_focal_loss(logits, truth).mean((-2, -1))
        if void is not None:  # the mean over the others
            focal = focal / (~void).float().mean((-2, -1))[:, None, None]
        dice = dice_loss(logits, truth)
        best = (focal + dice).argmin(2, keepdim=True)
        actual = overlap(logits > 0, masks[:, None, None])
        return {
            "focal": focal.take_along_dim(best, 2).mean(),
            "dice": dice.take_along_dim(best, 2).mean(),
            "iou": self.iou * mse_loss(iou.float(), actual.float()),
        }

    def answers(
        self,
        batch: Batch,
        prompt: Prompt,
        correct: Callable[[Tensor, Tensor], Prompt] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """The model's output after a first prompt and, with `correct`, after further clicks.

        A pixel without a label is in no mask, so that no loss, measure or click comes from it.
        """
        void = batch.get("void")

        def known(logits: Tensor) -> Tensor:
            if void is None:
                return logits
            of_all = void.view(len(void), *[1] * (logits.dim() - 3), *void.shape[1:])
            return logits.masked_fill(of_all, NO_MASK)

        points, labels = prompt
        if correct is not None:
            further = self.clicks - 1
            points = torch.cat([points, points.new_zeros(len(points), further, 2)], dim=1)
            labels = torch.cat([labels, labels.new_zeros(len(labels), further)], dim=1)
        given = None if correct is None else lambda logits, iou: correct(known(logits), iou)
        masks, iou = self.model(batch["images"], points, labels, given)
        return known(masks), iou

    def first_prompt(self, masks: Tensor) -> Prompt:
        """A pixel of each object, or its box."""
        points, labels = first_click(largest(self.drawn(masks, FIRST_POINT) * masks))
        corners, of_corners = box_prompt(masks)
        box = self.drawn(masks, FIRST_KIND)[:, 0, 0] < self.boxes
        return (
            torch.where(box[:, None, None], corners, points),
            torch.where(box[:, None], of_corners, labels),
        )

    def drawn(self, masks: Tensor, use: int) -> Tensor:
        """Random numbers between 0 and 1 for every pixel, b y x."""
        key = self.model.draws.key(masks, use)
        return uniform(Source(key), torch.empty(masks[:, None].shape, device=masks.device))[:, 0]

    def clicked(self, batch: Batch) -> tuple[list[Prompt], Tensor, Tensor]:
        """The measured clicks, each b 2 with its label b, and the outputs of the model."""
        masks = batch["masks"]
        first = batch["points"][:, :FIRST], batch["labels"][:, :FIRST]
        clicks = [(first[0][:, 0], first[1][:, 0])]

        def correct(logits: Tensor, iou: Tensor) -> Prompt:
            predicted = chosen(logits, iou)[:, 0] > 0
            clicks.append(correction(predicted, masks, error_depths(predicted, masks)))
            return clicks[-1]

        return clicks, *self.answers(batch, first, correct)

    def evaluate(self, batch: Batch) -> None:
        masks = batch["masks"]
        _, logits, iou = self.clicked(batch)
        terms = self.measured_losses(logits, iou, masks, batch.get("void"))
        self.mean_loss.update(sum(terms.values()), len(masks))
        actual = overlap(logits > 0, masks[:, None, None])
        picked = iou[:, 0].argmax(1, keepdim=True)
        error = (iou[:, 0] - actual[:, 0]).abs().take_along_dim(picked, 1)
        self.iou_error.update(error)
        best = logits.take_along_dim(actual.argmax(2)[..., None, None, None], 2)[:, :, 0]
        of_box = chosen(*(answer[:, 0] for answer in self.answers(batch, box_prompt(masks))))
        by_metric = {"miou_box": of_box[:, 0]}
        for round_ in range(self.clicks):
            by_metric[f"miou_{round_ + 1}"] = chosen(logits[:, round_], iou[:, round_])[:, 0]
            by_metric[f"oracle_{round_ + 1}"] = best[:, round_]
        for group, rows in (("", ~batch["unfamiliar"]), ("unfamiliar/", batch["unfamiliar"])):
            if rows.any():
                for name in self.names:
                    predicted = by_metric[name][rows] > 0
                    score: Any = self.scores[group + name]
                    score.update(predicted[:, None], masks[rows][:, None])

    def measures(self, split: str) -> dict[str, Tensor]:
        return {
            "loss": self.mean_loss.compute(),
            **{name: score.compute() for name, score in self.scores.items()},  # type: ignore[operator]
            "iou_error": self.iou_error.compute(),
        }


def overlap(predicted: Tensor, truth: Tensor) -> Tensor:
    """Intersection over union, ... y x -> ...; 0 if both are empty."""
    both = (predicted & truth).sum((-2, -1))
    return both / (predicted | truth).sum((-2, -1)).clamp(min=1)


def dice_loss(logits: Tensor, truth: Tensor) -> Tensor:
    """1 - 2 sum p t / (sum p + sum t), one added above and below: ... y x -> ....

    Milletari et al. 2016, V-Net, https://arxiv.org/abs/1606.04797, without squares, as in SAM.
    """
    shares = logits.sigmoid()
    both, either = (shares * truth).sum((-2, -1)), (shares + truth).sum((-2, -1))
    return 1 - (2 * both + 1) / (either + 1)
