"""The SVG elements that the page's charts are made of."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from math import ceil, floor, isfinite, log10
from statistics import median

from ablate.study.numbers import MINUS


def tag(name: str, *body: str, **attributes: object) -> str:
    """Make an element from markup; `class_` and `stroke_width` become class and stroke-width."""
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(_text(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return f"<{name}{given}>{''.join(body)}</{name}>"


def _text(value: object) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


def text(words: str, x: float, y: float, **attributes: object) -> str:
    return tag("text", escape(words), x=x, y=y, **attributes)


@dataclass(frozen=True)
class Axis:
    """Map numbers from `low` to `high` to pixels from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)

    def inside(self, value: float) -> bool:
        return self.low <= value <= self.high

    def ticks(self, count: int = 5) -> list[float]:
        """Return about `count` round numbers inside; more if one alone would show no distance."""
        raw = (self.high - self.low) / count
        size = 10.0 ** floor(log10(raw))
        step = next(size * m for m in (1, 2, 5, 10) if size * m >= raw * 0.999)
        marks = self._multiples(step)
        return marks if len(marks) > 1 else self._multiples(0.4 * step)  # 2 instead of 5

    def _multiples(self, step: float) -> list[float]:
        first, last = ceil(self.low / step - 1e-9), floor(self.high / step + 1e-9)
        return [round(step * number, 12) for number in range(first, last + 1)]


def axis(values: Iterable[float], start: float, end: float, *, margin: float = 0.06) -> Axis:
    """Make an axis that holds all the values, with a margin on both sides."""
    known = [value for value in values if isfinite(value)]
    low, high = (min(known), max(known)) if known else (0.0, 1.0)
    room = (high - low) * margin or abs(high) * 0.1 or 1.0
    return Axis(low - room, high + room, start, end)


def around_zero(ends: Sequence[float], start: float, end: float) -> Axis:
    """Make an axis for intervals, with zero and all ends except outliers, which dwarf the rest."""
    sizes = sorted(abs(value) for value in ends if isfinite(value)) or [1.0]
    usual = 8 * median(sizes)
    kept = [value for value in ends if isfinite(value) and abs(value) <= usual] or [1.0]
    return axis([0.0, *kept], start, end, margin=0.08)


def label(value: float, ticks: Sequence[float]) -> str:
    """Format a tick's number, with as many digits as the ticks need to differ."""
    step = min((b - a for a, b in pairwise(ticks)), default=1.0)
    largest = max(abs(tick) for tick in ticks)
    if largest >= 1e5:
        exponent = 3 * (floor(log10(largest)) // 3)
        prefix = {3: "k", 6: "M", 9: "G", 12: "T", 15: "P", 18: "E"}.get(exponent)
        if prefix:
            return f"{value / 10**exponent:g} {prefix}".replace("-", MINUS)
    places = max(0, -floor(log10(step) + 1e-9))
    return f"{value:,.{places}f}".replace("-", MINUS)


def frame(x: Axis, y: Axis, *, xlabel: str, ylabel: str) -> str:
    """Draw grid lines, and numbers and names of both axes. y.start is the bottom."""
    parts = []
    marks = x.ticks()
    for mark in marks:
        parts.append(tag("line", class_="grid", x1=x(mark), x2=x(mark), y1=y.start, y2=y.end))
        parts.append(
            text(label(mark, marks), x(mark), y.start + 16, class_="tick", text_anchor="middle")
        )
    parts += rungs(x, y)
    middle = (y.start + y.end) / 2
    turned = f"rotate(-90 14 {middle:.1f})"
    parts.append(
        text(xlabel, (x.start + x.end) / 2, y.start + 36, class_="axis", text_anchor="middle")
    )
    parts.append(text(ylabel, 14, middle, class_="axis", text_anchor="middle", transform=turned))
    return "".join(parts)


def rungs(x: Axis, y: Axis, count: int = 5) -> list[str]:
    """Draw horizontal grid lines and their numbers."""
    parts, marks = [], y.ticks(count)
    for mark in marks:
        parts.append(tag("line", class_="grid", x1=x.start, x2=x.end, y1=y(mark), y2=y(mark)))
        number = label(mark, marks)
        parts.append(text(number, x.start - 6, y(mark) + 4, class_="tick", text_anchor="end"))
    return parts


def line(points: Iterable[tuple[float, float]]) -> str:
    """Return the `d` of a path through the points."""
    return "M" + "L".join(f"{x:.1f},{y:.1f}" for x, y in points)


def figure(width: float, height: float, title: str, *body: str, class_: str = "chart") -> str:
    """Make an <svg> that shrinks with the page; `title` is for screen readers."""
    return tag(
        "svg", *body, viewBox=f"0 0 {width:g} {height:g}", role="img", aria_label=title,
        class_=class_, style=f"max-width:{width:g}px",
    )  # fmt: skip
