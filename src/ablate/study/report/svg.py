"""The elements of the page, and the axis of the forest plot in its table."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, floor, isfinite, log10
from statistics import median

from markupsafe import Markup

from ablate.study.numbers import MINUS


def tag(name: str, *body: str, **attributes: object) -> Markup:
    """Make an element; `class_` and `stroke_width` become class and stroke-width.

    Everything in it that is not Markup is a text and is escaped, here and nowhere else.
    """
    given = (
        Markup(' {}="{}"').format(key.rstrip("_").replace("_", "-"), _text(value))
        for key, value in attributes.items()
        if value is not None
    )
    whole = Markup("<{0}{1}>{2}</{0}>")
    return whole.format(name, Markup("").join(given), Markup("").join(body))


def _text(value: object) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


def text(words: str, x: float, y: float, **attributes: object) -> Markup:
    return tag("text", words, x=x, y=y, **attributes)


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


def figure(width: float, height: float, title: str, *body: str, class_: str = "chart") -> Markup:
    """Make an <svg> that shrinks with the page; `title` is for screen readers."""
    return tag(
        "svg", *body, viewBox=f"0 0 {width:g} {height:g}", role="img", aria_label=title,
        class_=class_, style=f"max-width:{width:g}px",
    )  # fmt: skip
