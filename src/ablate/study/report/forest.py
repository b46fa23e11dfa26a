"""The forest plot: a column of the table, each arm's difference and interval on one common axis."""

from markupsafe import Markup

from ablate.study.analysis.stats import Interval
from ablate.study.numbers import interval, signed
from ablate.study.report.rows import Report, Row
from ablate.study.report.svg import Axis, around_zero, figure, label, tag, text

WIDTH, HEIGHT, HEAD = 210.0, 26.0, 50.0
SIDE = 14.0  # room beside the axis for the arrows of values beyond it


def scale(report: Report) -> Axis:
    """Make one axis for all arms that are compared; values far outside are drawn as arrows."""
    ends = []
    for one in report.compared:
        assert one.comparison is not None
        ends.append(one.comparison.difference)
        if reach := one.comparison.t_interval:
            ends += [reach.low, reach.high]
    return around_zero(ends, SIDE, WIDTH - SIDE)


def head(axis: Axis, mode: str) -> Markup:
    """Draw the numbers of the axis, and the side on which an arm is better."""
    marks = axis.ticks(4)
    parts = [
        text(label(mark, marks), axis(mark), HEAD - 8, class_="tick", text_anchor="middle")
        for mark in marks
    ]
    for mark in marks:
        at = axis(mark)
        parts.append(tag("line", class_="grid", x1=at, x2=at, y1=HEAD - 5, y2=HEAD))
    better, worse = ("← better", "worse →") if mode == "min" else ("better →", "← worse")
    left, right = (better, worse) if mode == "min" else (worse, better)
    for words, at, anchor in ((left, SIDE, "start"), (right, WIDTH - SIDE, "end")):
        kind = "better" if "better" in words else "worse"
        style = f"fill: var(--{kind})"
        parts.append(text(words, at, 14, text_anchor=anchor, style=style))
    return figure(WIDTH, HEAD, "Axis of the forest plot", *parts, class_="axis")


def row(axis: Axis, one: Row, places: int) -> Markup:
    """Draw the baseline at zero, the arm's mean and t interval, and behind it the bootstrap's."""
    middle = HEIGHT / 2
    parts = []
    for mark in axis.ticks(4):
        parts.append(tag("line", class_="grid", x1=axis(mark), x2=axis(mark), y1=0, y2=HEIGHT))
    parts.append(tag("line", class_="zero", x1=axis(0), x2=axis(0), y1=0, y2=HEIGHT))
    if one.arm.is_baseline:
        spot = tag("circle", class_="spot", cx=axis(0), cy=middle, r=4.5, data_tip="baseline")
        parts.append(spot)
    if found := one.comparison:
        tip = f"{one.arm.name}\n{signed(found.difference, places)} from the baseline"
        if found.bootstrap:
            parts.append(_reach(axis, found.bootstrap, "boot", middle))
        if found.t_interval:
            tip += f"\n95 % interval {interval(found.t_interval, places)}"
            parts.append(_reach(axis, found.t_interval, "reach", middle))
        if found.bootstrap:
            tip += f"\nbootstrap {interval(found.bootstrap, places)}"
        parts.append(_spot(axis, found.difference, middle))
        whole = {"x": 0, "y": 0, "width": WIDTH, "height": HEIGHT}
        parts.append(tag("rect", **whole, fill="transparent", data_tip=tip))
    title = f"{one.arm.name}: {signed(one.difference, places)}"
    return figure(WIDTH, HEIGHT, title, *parts, class_="row")


def _reach(axis: Axis, reach: Interval, kind: str, y: float) -> Markup:
    """Draw a line from low to high, cut at the ends of the axis."""
    ends = [axis(min(max(value, axis.low), axis.high)) for value in (reach.low, reach.high)]
    return tag("line", class_=kind, x1=ends[0], x2=ends[1], y1=y, y2=y)


def _spot(axis: Axis, value: float, y: float) -> Markup:
    """Draw a dot, or an arrow that points beyond the axis."""
    if axis.inside(value):
        return tag("circle", class_="spot", cx=axis(value), cy=y, r=4.5)
    sign = 1 if value > axis.high else -1
    tip = axis(axis.high if sign > 0 else axis.low) + sign * (SIDE - 1)
    back = tip - sign * 11
    shape = f"{tip:.1f},{y:.1f} {back:.1f},{y - 6:.1f} {back:.1f},{y + 6:.1f}"
    return tag("polygon", class_="beyond", points=shape)
