"""The page's charts as SVG: learning curves and main effects.

Every mark carries `data-tip`, which the page shows on hover, and `data-arm`, by which pointing at
an arm anywhere highlights it everywhere. Colours are classes, so light and dark themes can differ.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from math import ceil
from statistics import fmean

from ablate.study.numbers import listed, number, shortened
from ablate.study.report.points import Curve, Panel
from ablate.study.report.svg import Axis, axis, figure, frame, line, rungs, tag, text

WIDTH, HEIGHT = 1100.0, 420.0
LEFT, RIGHT, TOP, BOTTOM = 64.0, 310.0, 12.0, 46.0
PANEL_WIDTH, PANEL_HEIGHT, OPTION_WIDTH, WIDEST = 250.0, 210.0, 62.0, 1160.0
SETTLED = 0.3  # share of training at the start that does not set the limits of the vertical axis


@dataclass(frozen=True)
class Look:
    """Settings shared by all charts of a page. labels: arm -> its name beside its mark.

    name: the metric in words. places: digits after the point of its numbers.
    """

    baseline: str
    colours: Mapping[str, int]
    labels: Mapping[str, str]
    name: str
    places: int

    def kind(self, arm: str) -> str:
        """Return the class that gives an arm its colour."""
        if arm == self.baseline:
            return "base"
        return f"c{self.colours[arm]}" if arm in self.colours else "rest"

    def number(self, value: float) -> str:
        return number(value, self.places)


def draw_curves(curves: Sequence[Curve], look: Look) -> str:
    """Draw mean lines with bands of one standard deviation, named at their ends."""
    last = max(curve.steps[-1] for curve in curves)
    x = Axis(0, last, LEFT, WIDTH - RIGHT)
    y = axis(_settled(curves, last * SETTLED), HEIGHT - BOTTOM, TOP)
    clip = tag("rect", x=LEFT, y=TOP, width=WIDTH - RIGHT - LEFT, height=HEIGHT - BOTTOM - TOP)
    parts = [
        tag("clipPath", clip, id="plot"),
        frame(x, y, xlabel="optimizer step", ylabel=look.name),
    ]
    shown = [curve for curve in curves if look.kind(curve.arm) != "rest"]
    drawn = [
        *(c for c in curves if c not in shown),
        *sorted(shown, key=lambda c: c.arm == look.baseline),
    ]
    for curve in drawn:
        kind = look.kind(curve.arm)
        marks = _marks(curve, x, y, look) if kind != "rest" else ""
        body = _band(curve, x, y) + tag("path", class_="line", d=_path(curve, x, y)) + marks
        one = tag("g", body, class_=f"curve {kind}", data_arm=curve.arm)
        parts.append(tag("g", one, clip_path="url(#plot)"))
    parts += _end_labels(shown, look, x, y)
    return figure(WIDTH, HEIGHT, f"Learning curves of {look.name}", *parts)


def _settled(curves: Sequence[Curve], after: float) -> list[float]:
    """Return the values after the steep start; all values of a curve that ends before."""
    found = []
    for curve in curves:
        rows = list(zip(curve.steps, curve.means, curve.spreads, strict=True))
        late = [row for row in rows if row[0] > after] or rows
        found += [m + sign * s for _, m, s in late for sign in (-1, 1)]
    return found


def _path(curve: Curve, x: Axis, y: Axis) -> str:
    return line((x(s), y(m)) for s, m in zip(curve.steps, curve.means, strict=True))


def _band(curve: Curve, x: Axis, y: Axis) -> str:
    if curve.seeds < 2:
        return ""
    rows = list(zip(curve.steps, curve.means, curve.spreads, strict=True))
    above = [(x(step), y(mean + spread)) for step, mean, spread in rows]
    below = [(x(step), y(mean - spread)) for step, mean, spread in reversed(rows)]
    return tag("path", class_="band", d=line([*above, *below]) + "Z")


def _marks(curve: Curve, x: Axis, y: Axis, look: Look) -> str:
    parts = []
    for step, mean, spread in zip(curve.steps, curve.means, curve.spreads, strict=True):
        tip = f"{curve.arm}\nstep {step:,}: {look.number(mean)}"
        tip += f" ± {look.number(spread)} over {curve.seeds} seeds" if curve.seeds > 1 else ""
        parts.append(tag("circle", class_="dot", cx=x(step), cy=y(mean), r=2.6, data_tip=tip))
    return "".join(parts)


def _end_labels(curves: Sequence[Curve], look: Look, x: Axis, y: Axis) -> list[str]:
    """Draw names beside the ends of the lines, moved apart so that none covers another."""
    ends = sorted((y(min(max(c.means[-1], y.low), y.high)), x(c.steps[-1]), c.arm) for c in curves)
    places = spaced([end[0] for end in ends], 15.0, TOP + 4, HEIGHT - BOTTOM)
    parts = []
    for (at, last, arm), place in zip(ends, places, strict=True):
        kind = look.kind(arm)
        lead = line([(last + 2, at), (x.end + 2, at), (x.end + 12, place), (x.end + 16, place)])
        name = text(shortened(look.labels[arm], 38), x.end + 20, place + 4, class_="name")
        body = tag("path", class_="lead", d=lead) + name
        parts.append(tag("g", body, class_=f"label {kind}", data_arm=arm, data_tip=arm))
    return parts


def spaced(places: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Move sorted places apart to keep the gap, by a downward and an upward pass."""
    found = list(places)
    for n in range(1, len(found)):
        found[n] = max(found[n], found[n - 1] + gap)
    if found and found[-1] > high:
        found[-1] = high
        for n in range(len(found) - 2, -1, -1):
            found[n] = min(found[n], found[n + 1] - gap)
    return [max(place, low - gap) for place in found]


def draw_panels(panels: Sequence[Panel], look: Look) -> list[str]:
    """Draw a small chart per factor: dots for runs, bars for means of options; one common scale."""
    every = [value for panel in panels for values in panel.values for value in values]
    if not every:
        return []
    y = axis(every, PANEL_HEIGHT - 40, 10)
    return [_panel(panel, y, look) for panel in panels]


def _panel(panel: Panel, y: Axis, look: Look) -> str:
    count = len(panel.options)
    width = min(max(PANEL_WIDTH, LEFT + count * OPTION_WIDTH), WIDEST)
    x = Axis(-0.5, count - 0.5, LEFT - 8, width - 8)
    each = (width - LEFT) / count
    bar, named = min(15.0, each / 2.2), ceil(OPTION_WIDTH / each)  # of many options, every n-th
    parts = rungs(x, y, 4)
    means = [fmean(values) if values else None for values in panel.values]
    if count == 2 and None not in means:
        ends = [(x(n), y(mean)) for n, mean in enumerate(means) if mean is not None]
        parts.append(tag("path", class_="trend", d=line(ends)))
    for n, (option, values) in enumerate(zip(panel.options, panel.values, strict=True)):
        kind = "base" if n == panel.baseline else "c1"
        dots = [
            tag("circle", class_="run", cx=x(n) + _aside(k, len(values), each), cy=y(value), r=2.8,
                data_tip=f"{panel.factor}={option}\n{look.number(value)}")
            for k, value in enumerate(values)
        ]  # fmt: skip
        if (mean := means[n]) is not None:
            tip = f"{panel.factor}={option}\nmean of {len(values)} runs: {look.number(mean)}"
            dots.append(
                tag("line", class_="mean", x1=x(n) - bar, x2=x(n) + bar, y1=y(mean), y2=y(mean),
                    data_tip=tip)
            )  # fmt: skip
        parts.append(tag("g", *dots, class_=kind))
        if n % named == 0:
            letters = max(4, int(named * each / 6.4))
            words = shortened(option, letters) + (" *" if n == panel.baseline else "")
            low, where = PANEL_HEIGHT - 22, {"class_": "tick", "text_anchor": "middle"}
            parts.append(text(words, x(n), low, **where, data_tip=option))
    title = f"{look.name} by {panel.factor}: {listed(panel.options)}"
    chart = figure(width, PANEL_HEIGHT - 10, title, *parts)
    caption = tag("figcaption", tag("code", escape(panel.factor)))
    return tag("figure", chart, caption, class_="panel")


def _aside(place: int, count: int, room: float) -> float:
    """Return the offset of a dot from the middle, so that equal values can be told apart."""
    return 0.0 if count < 2 else (place / (count - 1) - 0.5) * min(20.0, room / 2)
