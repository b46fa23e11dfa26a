"""Masks of a segmentation click by click, and the attention maps of its mask decoder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ablate.figures.maps import Map
from ablate.figures.panels import OUTLINE, TITLE, Panel, draw_image, draw_panels, entitle, outline
from ablate.figures.patches import draw_patches
from ablate.systems.segmentation.prompts import BACKGROUND, OBJECT

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INCH = 1.9  # width of a panel
MASK, TRUTH = "#29a9ff", "#ffd23f"
ON, OFF = "#3df26f", OUTLINE  # a click on the object, on the background
SHEER = 0.65  # opacity of a mask over the image


@dataclass(frozen=True)
class Answered:
    """An image, y x 3, with the mask after each prompt, y x, its caption, and the prompt.

    clicks: x, y and label of each click; of them the first few are those of an answer. box: rows
    and columns. truth: y x, if it is known. name: at the left.
    """

    image: Tensor
    masks: Sequence[Tensor]
    titles: Sequence[str]
    clicks: Sequence[tuple[int, int, int]]
    box: tuple[range, range] | None
    truth: Tensor | None
    name: str


def draw_answers(answers: Sequence[Answered], title: str) -> Figure:
    """A row for each image: the image, its masks, and the truth if it is known."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    known = all(answer.truth is not None for answer in answers)
    columns = 1 + max(len(answer.masks) for answer in answers) + known
    height, width = answers[0].image.shape[:2]
    size = max(columns * INCH + 0.3, 6.0), len(answers) * (INCH * height / width + 0.25) + 0.7
    figure = Figure(figsize=size, layout="constrained")
    rows = figure.subplots(len(answers), columns, squeeze=False)
    for row, answer in zip(rows, answers, strict=True):
        draw_image(row[0], answer.image, "the image")
        row[0].set_ylabel(answer.name, fontsize=TITLE)
        first = 0 if answer.box else 1  # clicks of the first answer
        for number, (mask, caption) in enumerate(zip(answer.masks, answer.titles, strict=True)):
            axis = row[1 + number]
            draw_image(axis, answer.image, caption)
            cover(axis, mask, MASK)
            outline(axis, [answer.box] if answer.box else [])
            last = number == len(answer.masks) - 1
            mark(axis, answer.clicks if last else answer.clicks[: first + number])
        if answer.truth is not None:
            draw_image(row[-1], answer.image, "the true mask")
            cover(row[-1], answer.truth, TRUTH)
    labels = {label for answer in answers for *_, label in answer.clicks}
    keys: list[Any] = [Patch(color=MASK, label="predicted mask")]
    for label, caption in ((OBJECT, "click: on the object"), (BACKGROUND, "click: not the object")):
        if label in labels:
            marker = Line2D([], [], **look(label), linestyle="none", label=caption)
            keys.append(marker)
    if any(answer.box for answer in answers):
        keys.append(Patch(fill=False, edgecolor=OUTLINE, label="box"))
    figure.legend(
        handles=keys, loc="outside lower center", ncols=min(len(keys), columns), fontsize=TITLE
    )
    entitle(figure, title)
    return figure


def cover(axis: Axes, mask: Tensor, color: str) -> None:
    """Color the pixels of a mask."""
    from matplotlib.colors import to_rgb

    layer = torch.tensor([*to_rgb(color), SHEER]) * mask[..., None]
    axis.imshow(layer, interpolation="nearest")


def look(label: int) -> dict[str, Any]:
    """The marker of a click."""
    color = ON if label == OBJECT else OFF
    marker = "P" if label == OBJECT else "X"
    return {"marker": marker, "color": color, "markeredgecolor": "black", "markersize": 9}


def mark(axis: Axes, clicks: Sequence[tuple[int, int, int]]) -> None:
    for x, y, label in clicks:
        axis.plot([x], [y], **look(label), markeredgewidth=0.8)


@dataclass(frozen=True)
class Clicked:
    """An image, y x 3, a click on it (x, y and label) and the mask that answers it, y x.

    patches: the map whose outputs are the cells of the image. tokens: the names of the decoder's.
    over: of each kind of map that is drawn over the image, its title and how to take the weights
    of the cells, h j, from those of a layer, h i j; the others are between tokens.
    """

    image: Tensor
    click: tuple[int, int, int]
    mask: Tensor
    patches: nn.Conv2d
    tokens: Sequence[str]
    over: Mapping[str, tuple[str, Callable[[Tensor], Tensor]]]


def decoder_drawer(clicked: Clicked) -> Callable[[Map, Sequence[int]], Figure]:
    """Draws a layer: over the image, or tokens as a square."""

    def figure(map_: Map, heads: Sequence[int]) -> Figure:
        layer = f"layer {map_.layer} of {map_.layers}"
        if map_.kind not in clicked.over:
            names = clicked.tokens
            panels = [
                Panel(f"head {n}", map_.weights[n - 1], names, names, map_.allowed) for n in heads
            ]
            title = f"How the tokens of the mask decoder attend to each other: {layer}"
            query, key = "query (attending token)", "key (attended token)"
            return draw_panels(panels, title, query=query, key=key, cell=0.28)
        who, taken = clicked.over[map_.kind]
        weights = taken(map_.weights)
        part = "image encoder" if map_.kind == "encoder" else "mask decoder"
        title = f"{who}: {part}, {layer}"
        named = {f"head {n}": weights[n - 1] for n in heads}
        drawing = draw_patches(named, clicked.image, clicked.patches, title, float(weights.max()))
        drawing.axes[0].set_title("the image, the click, the mask", fontsize=TITLE)
        cover(drawing.axes[0], clicked.mask, MASK)
        mark(drawing.axes[0], [clicked.click])
        return drawing

    return figure
