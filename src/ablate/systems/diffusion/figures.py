"""Images in rows, such as samples of a diffusion model, and the attention maps of its blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from einops import rearrange
from torch import Tensor

from ablate.figures.maps import Map
from ablate.figures.panels import (
    TITLE,
    Panel,
    color_bar,
    draw_image,
    draw_panels,
    entitle,
    rows,
    scale,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_images(
    images: Sequence[Sequence[Tensor]],
    title: str,
    *,
    names: Sequence[str] = (),
    labels: Sequence[str] = (),
    line: int | None = None,
) -> Figure:
    """Rows of images, y x, black 0 to white 1.

    names: of the columns, above the first row. labels: of the rows. line: a column of pixels on
    whose left a line is drawn in all images but the first.
    """
    figure, axes = rows(len(images), len(images[0]), *images[0][0].shape)
    for number, (row, shown) in enumerate(zip(axes, images, strict=True)):
        for column, (axis, image) in enumerate(zip(row, shown, strict=True)):
            draw_image(axis, image, names[column] if names and not number else "")
            if line is not None and column:
                axis.axvline(line - 0.5, color="#ff5555", linewidth=1)
        if labels:
            row[0].set_ylabel(labels[number], fontsize=TITLE)
    entitle(figure, title)
    return figure


def block_drawer(
    image: Tensor, labels: Sequence[str], grid: tuple[int, int], tokens: int
) -> Callable[[Map, Sequence[int]], Figure]:
    """Draws a layer, a row for each head: of the caption's encoder, tokens by tokens; of the
    image's blocks, how much each patch attends to every token of time and caption, and how much
    the patches are attended to, on average over all of them.

    image: the input of the model, y x. labels: of the tokens of time and caption. grid: rows and
    columns of patches. tokens: their number before the patches."""

    def figure(map_: Map, heads: Sequence[int]) -> Figure:
        title = f"layer {map_.layer} of {map_.layers}"
        if map_.kind == "text":
            return words(
                map_, heads, labels[1:], f"Attention between the words of a caption: {title}"
            )
        heats_of_heads = [heat(map_.weights[head - 1]) for head in heads]
        figure, axes = rows(len(heads), 1 + len(heats_of_heads[0]), *image.shape)
        norm = scale(max(float(values.max()) for row in heats_of_heads for values in row.values()))
        for row, head, heats in zip(axes, heads, heats_of_heads, strict=True):
            draw_image(row[0], image, "model input")
            row[0].set_ylabel(f"head {head}", fontsize=TITLE)
            for axis, (name, values) in zip(row[1:], heats.items(), strict=True):
                cells = rearrange(values, "(y x) -> y x", y=grid[0])
                shown = axis.imshow(cells, norm=norm, interpolation="nearest")
                axis.set(xticks=[], yticks=[])
                axis.set_title(name, fontsize=TITLE)
        entitle(figure, f"Attention of the image patches: {title}")
        color_bar(figure, shown, list(figure.axes))
        return figure

    def heat(weights: Tensor) -> dict[str, Tensor]:
        """Titles, and values for each patch. weights: i j of a head."""
        patches = grid[0] * grid[1]
        weights = weights[-patches:]
        heats = {}
        if weights.shape[1] != patches:  # with, or only, the tokens of time and caption
            heats = {
                f"to {name if position < 2 else repr(name)}": weights[:, position]
                for position, name in enumerate(labels)
            }
        if weights.shape[1] != tokens:
            heats["of all, to each patch"] = weights[:, -patches:].mean(0)
        return heats

    return figure


def words(map_: Map, heads: Sequence[int], labels: Sequence[str], title: str) -> Figure:
    count = len(labels)
    weights, allowed = map_.weights[:, :count, :count], map_.allowed[:count, :count]
    panels = [Panel(f"head {head}", weights[head - 1], labels, labels, allowed) for head in heads]
    return draw_panels(panels, title, query="word", key="attended word")
