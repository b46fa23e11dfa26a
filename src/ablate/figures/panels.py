"""Panels beside each other with one colour scale."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from torch import Tensor

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDEST = 16.0  # inches of panels beside each other
MOST_LABELS = 64  # tokens named along an axis; of more, every n-th
CELL = 0.085  # inches of a token along an axis, at least
HIDDEN = "#d9d9d9"  # what the mask forbids
OUTLINE = "#ff5555"
TITLE = 10  # points
CHARACTER, LINE = 0.079, 0.17  # inches of a title: a character, rather wide, and a line
SCALE = 0.5  # colours follow the square root, or weights spread over many keys would look zero


@dataclass(frozen=True)
class Panel:
    """Queries from top to bottom, keys from left to right.

    weights: i j. allowed: i j, False is drawn grey. outlined: rectangles of queries and keys.
    """

    title: str
    weights: Tensor
    queries: Sequence[str]
    keys: Sequence[str]
    allowed: Tensor
    outlined: Sequence[tuple[range, range]] = field(default=())


def draw_panels(
    panels: Sequence[Panel],
    title: str,
    top: float,
    *,
    query: str,
    key: str,
    cell: float = CELL,
    measure: str = "attention weight",
) -> Figure:
    """top: the weight that gets the brightest colour. query, key: what stands along the axes.
    measure: what the colours show."""
    width, height = (
        1.2 + cell * min(max(map(len, names)), MOST_LABELS)
        for names in ([one.keys for one in panels], [one.queries for one in panels])
    )
    figure, axes = grid(len(panels), width=max(3.0, width), height=max(2.4, height))
    place = axes[0].get_subplotspec()
    assert place is not None
    abreast = place.get_gridspec().ncols
    # Panels of the same tokens name them at the left and at the bottom: words are what drawing
    # takes its time for.
    same = all((one.queries, one.keys) == (panels[0].queries, panels[0].keys) for one in panels)
    for number, (axis, panel) in enumerate(zip(axes, panels, strict=True)):
        shown = draw_panel(axis, panel, top)
        if not same or number + abreast >= len(panels):
            places, names, size = ticks(panel.keys)
            axis.set_xticks(places, names, rotation=90, fontsize=size, parse_math=False)
            axis.set_xlabel(key)
        if not same or number % abreast == 0:
            places, names, size = ticks(panel.queries)
            axis.set_yticks(places, names, fontsize=size, parse_math=False)
            axis.set_ylabel(query)
    entitle(figure, title)
    colour_bar(figure, shown, axes, measure)
    return figure


def draw_panel(axis: Axes, panel: Panel, top: float) -> Any:
    """The colours, what is outlined and the title, without what stands along the axes."""
    import numpy as np

    axis.set_facecolor(HIDDEN)
    seen = np.ma.masked_array(panel.weights.numpy(), ~panel.allowed.numpy())
    # With square cells, constrained layout would take the labels for smaller than they are.
    shown = axis.imshow(seen, norm=scale(top), interpolation="nearest", aspect="auto")
    # A token such as $x$ is no formula.
    axis.set_title(panel.title, parse_math=False, fontsize=TITLE)
    axis.set(xticks=[], yticks=[])
    axis.tick_params(length=1.5, pad=1)
    outline(axis, panel.outlined)
    return shown


def outline(axis: Axes, boxes: Sequence[tuple[range, range]]) -> None:
    """Frames around rectangles of rows and columns."""
    from matplotlib.patches import Rectangle

    for rows, columns in boxes:
        frame = Rectangle((columns.start - 0.5, rows.start - 0.5), len(columns), len(rows))
        frame.set(fill=False, edgecolor=OUTLINE, linewidth=1.5)
        axis.add_patch(frame)


def ticks(tokens: Sequence[str]) -> tuple[range, list[str], int]:
    """Where tokens are named along an axis, by what, and how large."""
    step = math.ceil(len(tokens) / MOST_LABELS)
    names = [token if step == 1 else f"{n} {token}" for n, token in enumerate(tokens)]
    return range(0, len(tokens), step), names[::step], 7 - (step > 1)


def scale(top: float) -> Any:
    """Weights to colours."""
    from matplotlib.colors import PowerNorm

    return PowerNorm(SCALE, 0, top)


def grid(count: int, *, width: float, height: float) -> tuple[Figure, list[Axes]]:
    """That many panels of so many inches in rows; the places left over are removed."""
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
    """Over all panels, in as many lines as the figure is narrow; it grows by them."""
    columns = int(figure.get_figwidth() / CHARACTER)
    lines = [part for line in title.splitlines() for part in wrap(line, columns)]
    figure.suptitle("\n".join(lines), fontsize=TITLE)
    figure.set_figheight(figure.get_figheight() + LINE * len(lines))


def colour_bar(
    figure: Figure, shown: Any, axes: list[Axes], measure: str = "attention weight"
) -> None:
    figure.colorbar(shown, ax=axes, shrink=0.8, pad=0.01, label=measure)
