"""Cost against quality as SVG: cost on the horizontal axis, the metric on the vertical one."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ablate.study.numbers import shortened
from ablate.study.report.charts import BOTTOM, LEFT, TOP, Look
from ablate.study.report.points import Cost
from ablate.study.report.svg import axis, figure, frame, tag, text

WIDTH, HEIGHT = 540.0, 340.0
CHARACTER, LINE = 6.8, 13.0  # pixels of a name's letter, and of its line


@dataclass(frozen=True)
class Box:
    """A rectangle of covered pixels."""

    left: float
    right: float
    top: float
    bottom: float

    def meets(self, other: "Box") -> bool:
        across = self.left < other.right and other.left < self.right
        return across and self.top < other.bottom and other.top < self.bottom


def draw_cost(
    costs: Sequence[Cost],
    look: Look,
    *,
    of: Callable[[Cost], float | None],
    what: str,
    show: Callable[[float], str],
) -> str:
    """Draw means with one standard deviation up and down, and names where they cover nothing."""
    known = [(cost, at) for cost in costs if (at := of(cost)) is not None]
    known.sort(key=lambda pair: look.kind(pair[0].arm) != "rest")
    x = axis([at for _, at in known], LEFT, WIDTH - 16, margin=0.12)
    ends = [cost.value + sign * cost.spread for cost, _ in known for sign in (-1, 1)]
    y = axis(ends, HEIGHT - BOTTOM, TOP)
    parts = [frame(x, y, xlabel=what, ylabel=look.name)]
    spots = [(x(at), y(cost.value)) for cost, at in known]
    taken = [Box(left - 6, left + 6, top - 6, top + 6) for left, top in spots]
    taken += [
        Box(left - 1, left + 1, y(cost.value + cost.spread), y(cost.value - cost.spread))
        for (cost, _), (left, _) in zip(known, spots, strict=True)
    ]
    for (cost, at), spot in zip(known, spots, strict=True):
        kind = look.kind(cost.arm)
        tip = f"{cost.arm}\n{look.name} {look.number(cost.value)} ± {look.number(cost.spread)}"
        tip += f"\n{what}: {show(at)}"
        up, down = y(cost.value + cost.spread), y(cost.value - cost.spread)
        body = tag("line", class_="whisker", x1=spot[0], x2=spot[0], y1=up, y2=down)
        body += tag("circle", class_="point", cx=spot[0], cy=spot[1], r=5, data_tip=tip)
        if kind != "rest":
            body += _name(shortened(look.labels[cost.arm], 30), spot, taken)
        parts.append(tag("g", body, class_=kind, data_arm=cost.arm))
    return figure(WIDTH, HEIGHT, f"{look.name} by {what}", *parts)


def _name(words: str, spot: tuple[float, float], taken: list[Box]) -> str:
    """Draw the name at the first free one of six places; else leave it to the tooltip."""
    (x, y), wide = spot, CHARACTER * len(words)
    for down in (4.0, -8.0, 16.0):
        for at, left, anchor in ((x + 9, x + 9, "start"), (x - 9, x - 9 - wide, "end")):
            box = Box(left, left + wide, y + down - LINE + 3, y + down + 3)
            inside = box.left > LEFT and box.right < WIDTH and box.top > TOP
            if inside and not any(box.meets(other) for other in taken):
                taken.append(box)
                return text(words, at, y + down, class_="name", text_anchor=anchor)
    return ""
