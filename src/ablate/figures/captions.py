"""Attention of a captioner over the picture, word by word."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from einops import rearrange
from torch import Tensor

from ablate.data.digit_strings import Box, DigitStrings
from ablate.figures.maps import Map, attention_maps
from ablate.figures.panels import OUTLINE, TITLE, colour_bar, entitle, scale
from ablate.model.captioner import Captioner
from ablate.model.resnet import STRIDE
from ablate.task import Task

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INCH = 1.7  # height of a panel
SHEER = 0.75  # of the weights that are laid over the picture


def caption_drawer(
    task: Task, examples: Sequence[dict[str, Any]], caption: str
) -> Callable[[Map, Sequence[int]], Figure]:
    """Draws a row for each example: the picture, and for each word what is looked at then.

    caption: where the words come from. Where the data knows what a word names, it is outlined.
    """
    data, model = task.data, task.model
    assert isinstance(data, DigitStrings)
    assert isinstance(model, Captioner)

    def figure(one: Map, heads: Sequence[int]) -> Figure:
        from matplotlib.figure import Figure

        weights = [attention_maps(task, example)[0].weights[0] for example in examples]
        height, width = data.size
        columns = 1 + max(map(len, weights))
        size = columns * INCH * width / height + 0.8, len(examples) * (INCH + 0.3) + 0.4
        drawing = Figure(figsize=size, layout="constrained")
        axes = drawing.subplots(len(examples), columns, squeeze=False)
        norm = scale(max(float(rows.max()) for rows in weights))
        for row, example, seen in zip(axes, examples, weights, strict=True):
            image = data.grey(example["images"][0])
            boxes = data.boxes("val", int(example["index"])) if "index" in example else []
            draw_picture(row[0], image, "the picture")
            cells = rearrange(seen, "i (y x) -> i y x", y=model.grid[0])
            words = enumerate(example["target_labels"])
            for axis, (place, word) in zip(row[1:], words, strict=False):  # the others are longer
                draw_picture(axis, image, word)
                heat = spread(cells[place], height, width)
                shown = axis.imshow(heat, norm=norm, alpha=SHEER, interpolation="nearest")
                outline(axis, boxes[place : place + 1])
            for axis in row[1 + len(seen) :]:
                axis.remove()
        named = "; outlined: where it is" if any("index" in example for example in examples) else ""
        entitle(drawing, f"Where the decoder looks while it writes each word\n{caption}{named}")
        colour_bar(drawing, shown, list(drawing.axes))
        return drawing

    return figure


def draw_picture(axis: Axes, image: Tensor, title: str) -> None:
    """image: y x, between black 0 and white 1."""
    axis.imshow(image, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
    axis.set_title(title, parse_math=False, fontsize=TITLE)
    axis.set(xticks=[], yticks=[])


def spread(weights: Tensor, height: int, width: int) -> Tensor:
    """Weights of the places of the feature map, y x -> that of the nearest place for each pixel."""
    rows, columns = (
        ((torch.arange(pixels) + STRIDE // 2) // STRIDE).clamp(max=places - 1)
        for pixels, places in zip((height, width), weights.shape, strict=True)
    )
    return weights[rows][:, columns]


def outline(axis: Axes, boxes: Sequence[Box]) -> None:
    from matplotlib.patches import Rectangle

    for rows, columns in boxes:
        frame = Rectangle((columns.start - 0.5, rows.start - 0.5), len(columns), len(rows))
        frame.set(fill=False, edgecolor=OUTLINE, linewidth=1.5)
        axis.add_patch(frame)
