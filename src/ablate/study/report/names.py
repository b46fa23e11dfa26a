"""Names beside lines and points, placed so that they cover nothing."""

from collections.abc import Iterable
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

from ablate.study.report.inline import Drawing, Mark, colour_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LETTER, LINE = 5.6, 12.0  # points: of a letter, rather wide, and from a name to the next
NEAR = 8  # points from a spot, too near for a lead
# Where the name of a point may stand, in points from it, the nearest first.
PLACES = [
    (x, y)
    for far in (NEAR, 24, 60)
    for y in (0, 12, -12, 24, -24, 36, -36, 48, -48)
    for x in (far, -far)
]


class Named(NamedTuple):
    """A spot in data coordinates, and the words, the class and the arm of its name."""

    x: float
    y: float
    words: str
    kind: str
    arm: str | None = None


def name_ends(drawing: Drawing, axes: "Axes", ends: Iterable[Named], height: float) -> None:
    """Write names beside the ends of lines. height: of the figure's row, in inches."""
    low, high = axes.get_ylim()
    known = [one._replace(y=min(max(one.y, low), high)) for one in ends]
    known.sort(key=lambda one: one.y)
    gap = LINE / (72 * height) * (high - low)
    for one, place in zip(known, spaced([one.y for one in known], gap, high), strict=True):
        _write(drawing, axes, one, (1.02, place), ("axes fraction", "data"))


def spaced(places: Iterable[float], gap: float, high: float) -> list[float]:
    """Move sorted places apart to keep the gap, by an upward and a downward pass."""
    up = list(accumulate(places, lambda last, place: max(place, last + gap)))
    down = accumulate(reversed(up), lambda last, place: min(place, last - gap), initial=high + gap)
    return list(down)[:0:-1]


def name_points(drawing: Drawing, axes: "Axes", points: Iterable[Named]) -> None:
    """Write each name where it covers least. The axes must have their final places."""
    from matplotlib.transforms import Bbox
    from numpy import array

    unit = drawing.figure.dpi / 72
    taken = [line.get_window_extent() for line in axes.lines]
    for one in points:
        spot = axes.transData.transform((one.x, one.y))
        wide, half = LETTER * len(one.words), LINE / 2
        boxes = {}
        for x, y in PLACES:
            left = x - wide * (x < 0)
            ends = array([(left, y - half), (left + wide, y + half)])
            boxes[x, y] = Bbox(spot + unit * ends)
        inside = [
            at for at, box in boxes.items() if all(axes.bbox.contains(*p) for p in box.get_points())
        ]
        best = min(inside or PLACES, key=lambda place: boxes[place].count_overlaps(taken))
        taken += 9 * [boxes[best]]  # to cover a name is worse than to cover a line
        _write(drawing, axes, one, best, "offset points")


def _write(
    drawing: Drawing, axes: "Axes", one: Named, place: tuple[float, float], unit: Any
) -> None:
    """Write a name at a place, with a lead to its spot unless it is near."""
    left, colour = place[0] < 0, colour_of(one.kind)
    lead = {"arrowstyle": "-", "color": colour, "alpha": 0.6, "linewidth": 0.8, "shrinkA": 0,
            "shrinkB": 3, "relpos": (int(left), 0.5)}  # fmt: skip
    near = abs(place[0]) == NEAR and abs(place[1]) <= LINE
    name = axes.annotate(
        one.words, (one.x, one.y), place, textcoords=unit, color=colour, fontsize=8.5,
        weight="bold" if one.kind == "base" else "normal", ha="right" if left else "left",
        va="center", annotation_clip=False, arrowprops=None if near else lead,
    )  # fmt: skip
    for part in filter(None, (name, name.arrow_patch)):
        drawing.mark(part, Mark(f"label {one.kind}", one.arm, one.arm))
