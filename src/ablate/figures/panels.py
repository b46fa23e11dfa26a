"""Panels side by side with one color scale."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from torch import Tensor

from ablate.errors import UserError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDEST = 16.0  # inches of panels side by side
MOST_LABELS = 64  # tokens labeled along an axis; of more, every n-th
CELL = 0.085  # inches of a token along an axis, at least
HIDDEN = "#d9d9d9"  # masked pairs
OUTLINE = "#ff5555"
TITLE = 10  # points
CHARACTER, LINE = 0.079, 0.17  # inches of a title: a character, rather wide, and a line
SCALE = 0.5  # colors follow the square root, or weights spread over many keys would look zero


@dataclass(frozen=True)
class Panel:
    """Queries from top to bottom, keys from left to right.

    weights: i j. allowed: i j, False is drawn gray. outlined: rectangles of queries and keys.
    """

    title: str
    weights: Tensor
    queries: Sequence[str]
    keys: Sequence[str]
    allowed: Tensor
    outlined: Sequence[tuple[range, range]] = field(default=())


def chosen(what: str, number: int | None, count: int) -> Sequence[int]:
    """The numbers of the panels, such as "layer": this one, or all, counted from 1."""
    if number is None:
        return range(1, count + 1)
    if not 1 <= number <= count:
        raise UserError(f"{what} {number}: this model has {what}s 1 to {count}")
    return [number]


def draw_panels(
    panels: Sequence[Panel],
    title: str,
    *,
    query: str,
    key: str,
    cell: float = CELL,
    measure: str = "attention weight",
) -> Figure:
    """query, key: labels of the axes. measure: label of the color bar.

    Every figure has the colors of 0 to 1, since those of several runs are compared. Only
    weights above 1, of a normalizer that does not divide, need more.
    """
    top = max(1.0, *(float(panel.weights.max()) for panel in panels))
    whole = math.isclose(top, 1.0, abs_tol=1e-3)
    top, alike = (1.0, "0 to 1 in every figure") if whole else (top, "0 to the largest here")
    width, height = (
        1.2 + cell * min(max(map(len, names)), MOST_LABELS)
        for names in ([panel.keys for panel in panels], [panel.queries for panel in panels])
    )
    figure, axes = grid(len(panels), width=max(3.0, width), height=max(2.4, height))
    cell_of_grid = axes[0].get_subplotspec()
    assert cell_of_grid is not None
    abreast = cell_of_grid.get_gridspec().ncols
    # Panels of the same tokens label them at the left and at the bottom only: drawing text takes
    # most of the time.
    same = all(
        (panel.queries, panel.keys) == (panels[0].queries, panels[0].keys) for panel in panels
    )
    for number, (axis, panel) in enumerate(zip(axes, panels, strict=True)):
        shown = draw_panel(axis, panel, top)
        if not same or number + abreast >= len(panels):
            positions, names, size = ticks(panel.keys)
            axis.set_xticks(positions, names, fontsize=size, parse_math=False)
            for label, name in zip(axis.get_xticklabels(), names, strict=True):
                label.set_rotation(90 if len(name) > 1 else 0)
            axis.set_xlabel(key)
        if not same or number % abreast == 0:
            positions, names, size = ticks(panel.queries)
            axis.set_yticks(positions, names, fontsize=size, parse_math=False)
            axis.set_ylabel(query)
    entitle(figure, title)
    color_bar(figure, shown, axes, f"{measure}\n({alike})")
    return figure


def draw_panel(axis: Axes, panel: Panel, top: float) -> Any:
    """The colors, the outlines and the title, without the labels of the axes."""
    import numpy as np

    axis.set_facecolor(HIDDEN)
    seen = np.ma.masked_array(panel.weights.numpy(), ~panel.allowed.numpy())
    # With square cells, constrained layout would take the labels for smaller than they are.
    shown = axis.imshow(seen, norm=scale(top), interpolation="nearest", aspect="auto")
    # A token such as $x$ is not a formula.
    axis.set_title(panel.title, parse_math=False, fontsize=TITLE)
    axis.set(xticks=[], yticks=[])
    axis.tick_params(length=1.5, pad=1)
    outline(axis, panel.outlined)
    return shown


def draw_image(axis: Axes, image: Tensor, title: str) -> None:
    """image: y x between black 0 and white 1, or y x 3."""
    axis.imshow(image, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
    axis.set_title(title, parse_math=False, fontsize=TITLE)
    axis.set(xticks=[], yticks=[])


def outline(axis: Axes, boxes: Sequence[tuple[range, range]]) -> None:
    """Frames around rectangles of rows and columns."""
    from matplotlib.patches import Rectangle

    for rows, columns in boxes:
        frame = Rectangle((columns.start - 0.5, rows.start - 0.5), len(columns), len(rows))
        frame.set(fill=False, edgecolor=OUTLINE, linewidth=1.5)
        axis.add_patch(frame)


def ticks(tokens: Sequence[str]) -> tuple[range, list[str], int]:
    """Positions of the labels along an axis, the labels, and their font size."""
    step = math.ceil(len(tokens) / MOST_LABELS)
    names = [token if step == 1 else f"{n} {token}" for n, token in enumerate(tokens)]
    return range(0, len(tokens), step), names[::step], 7 - (step > 1)


def scale(top: float) -> Any:
    """The color normalization of weights from 0 to `top`."""
    from matplotlib.colors import PowerNorm

    return PowerNorm(SCALE, 0, top)


def grid(count: int, *, width: float, height: float) -> tuple[Figure, list[Axes]]:
    """`count` panels of width x height inches in rows; unused ones are removed."""
    from matplotlib.figure import Figure

    rows = math.ceil(count / max(1, int(WIDEST // width)))
    columns = math.ceil(count / rows)
    size = (max(columns * width + 0.8, 5.2), rows * height + 0.4)
    figure = Figure(figsize=size, layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axis in axes[count:]:
        axis.remove()
    return figure, axes[:count]


def entitle(figure: Figure, title: str) -> None:
    """Put a title over all panels, and over the titles so far, wrapped to the figure's width; the
    figure grows by its lines."""
    columns = int(figure.get_figwidth() / CHARACTER)
    lines = [part for line in title.splitlines() for part in wrap(line, columns)]
    figure.suptitle("\n".join([*lines, *figure.get_suptitle().splitlines()]), fontsize=TITLE)
    figure.set_figheight(figure.get_figheight() + LINE * len(lines))


def color_bar(
    figure: Figure,
    shown: Any,
    axes: list[Axes],
    measure: str = "attention weight\n(0 to the largest here)",
) -> None:
    figure.colorbar(shown, ax=axes, shrink=0.8, pad=0.01, label=measure)


INCH = 1.7  # height of a panel of `rows`


def rows(count: int, columns: int, height: int, width: int) -> tuple[Figure, Any]:
    """A figure with `count` rows of panels for images of height x width pixels."""
    from matplotlib.figure import Figure

    size = columns * INCH * width / height + 0.8, count * (INCH + 0.3) + 0.4
    drawing = Figure(figsize=size, layout="constrained")
    return drawing, drawing.subplots(count, columns, squeeze=False)
