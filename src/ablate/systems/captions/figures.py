"""Attention of a captioner over the image, word by word."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ablate.data.digit_strings import Box, DigitStrings
from ablate.figures.maps import Map
from ablate.figures.panels import color_bar, draw_image, entitle, outline, rows, scale

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SHEER = 0.75  # opacity of the weights over the image


def caption_drawer(
    data: DigitStrings,
    examples: Sequence[dict[str, Any]],
    maps: Sequence[Tensor],
    caption: str,
    *,
    stride: int,
) -> Callable[[Map, Sequence[int]], Figure]:
    """Draws a row for each example: the image, and for each word its attention weights.

    maps: the weights of each example, of words and of the cells of the feature map, i y x. stride:
    pixels between two cells. caption: the source of the words. If the data knows the object of a
    word, it is outlined.
    """
    known = any("index" in example for example in examples)

    def figure(map_: Map, heads: Sequence[int]) -> Figure:
        drawing, axes = rows(len(examples), 1 + max(map(len, maps)), *data.size)
        norm = scale(max(float(weights.max()) for weights in maps))
        for row, example, weights in zip(axes, examples, maps, strict=True):
            boxes = data.boxes("val", int(example["index"])) if "index" in example else []
            image = data.gray(example["images"][0])
            words = example["target_labels"]
            shown = draw_row(row, image, weights, words, boxes, norm, stride)
        named = "; outlined: its position" if known else ""
        entitle(drawing, f"Attention of the decoder for each generated word\n{caption}{named}")
        color_bar(drawing, shown, list(drawing.axes))
        return drawing

    return figure


def draw_row(
    row: Sequence[Axes],
    image: Tensor,
    cells: Tensor,
    words: Sequence[str],
    boxes: Sequence[Box],
    norm: Any,
    stride: int,
) -> Any:
    """The image, y x, then for each word its weights, i y x, over the image; unused panels are
    removed."""
    draw_image(row[0], image, "the image")
    for number, (word, weights) in enumerate(zip(words, cells, strict=True)):
        axis = row[1 + number]
        draw_image(axis, image, word)
        heat = spread(weights, *image.shape, stride=stride)
        shown = axis.imshow(heat, norm=norm, alpha=SHEER, interpolation="nearest")
        outline(axis, boxes[number : number + 1])
    for axis in row[1 + len(words) :]:
        axis.remove()
    return shown


def spread(weights: Tensor, height: int, width: int, *, stride: int) -> Tensor:
    """Weights of the cells of the feature map, y x -> that of the nearest cell for each pixel."""
    rows, columns = (
        ((torch.arange(pixels) + stride // 2) // stride).clamp(max=cells - 1)
        for pixels, cells in zip((height, width), weights.shape, strict=True)
    )
    return weights[rows][:, columns]
