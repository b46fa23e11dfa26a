"""The figures: forest plot, learning curves, main effects, interactions, cost against quality.

Each is a matplotlib figure, saved as PNG and PDF and drawn in the page; of many arms the page's
forest plot has those with the largest differences.
"""

import warnings
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from math import ceil, isfinite
from pathlib import Path
from statistics import fmean, median
from textwrap import fill
from typing import TYPE_CHECKING, Any, NamedTuple

from markupsafe import Markup

from ablate.figures.save import save, saved_as
from ablate.study.analysis.curves import Cost
from ablate.study.analysis.effects import Effect
from ablate.study.analysis.ladder import Ladder
from ablate.study.analysis.rows import MOST_COLORS, Report, Row
from ablate.study.analysis.scaling_law import LEAST, Law
from ablate.study.metric_words import direction, metric_words
from ablate.study.numbers import amount, duration, interval, listed, shortened, signed
from ablate.study.report.chart_data import FactorPanel, Limits, Points, limits_of, robust
from ablate.study.report.inline import (
    BACK,
    BASE,
    RULE,
    SOFT,
    VERDICTS,
    Drawing,
    Mark,
    color_of,
    inline,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.labelsize": 9,
    "axes.titlesize": 9,
    "axes.labelcolor": SOFT,
    **{f"axes.spines.{side}": False for side in ("left", "right", "top", "bottom")},
    **{f"{side}tick.{key}": value for side in "xy"
       for key, value in {"labelsize": 8, "labelcolor": SOFT, "major.size": 0}.items()},
    "axes.axisbelow": True,
    "grid.color": RULE,
    "text.parse_math": False,  # an arm such as $x$ is not a formula
}  # fmt: skip
WIDEST = 9.5  # inches of a figure
BESIDE = 5.6  # inches of those next to the verdicts
LINE = 0.3  # inches of a row in the forest plot
FEW = 8  # rows of the forest plot next to the verdicts
LETTER, SIDE = 0.07, 0.55  # inches of a letter along an axis, and of the numbers at its side
MOST_ROWS = 120
MOST_PAIRS = 6  # interactions drawn
NAME = 0.17  # inches from a name at the right to the next


class Spot(NamedTuple):
    """The target of a name: a position in data coordinates, the words, the class and the arm."""

    x: float
    y: float
    words: str
    kind: str
    arm: str | None = None


def draw(
    report: Report, points: Points, folder: Path | None
) -> tuple[list[Path], dict[str, list[Markup]]]:
    """Write PNG and PDF of each figure that has data, and delete old files of the others; without
    a folder write nothing.

    Return the files, and by the name of a figure its charts for the page.
    """
    import matplotlib

    found = report.ladder
    costs = [row.cost for row in report.rows if row.cost]
    pairs = report.crossed.interactions[:MOST_PAIRS] if report.crossed else []
    options = any(any(panel.values) for panel in points.panels)
    figures: dict[str, tuple[object, Callable[[], Drawing]]] = {  # whether there is one
        "forest": (report.compared, lambda: _forest(report, report.largest(MOST_ROWS))),
        "curves": (points.curves, lambda: _curves(report, points)),
        "effects": (options, lambda: _effects(report, points.panels)),
        "interactions": (pairs, lambda: _interactions(report, pairs)),
        "ladder": (found, lambda: _ladder(found, report)),  # type: ignore[arg-type]
        # A mean over sizes is not informative: a ladder has its own figure by FLOPs.
        "cost": ([] if found else _sides(costs), lambda: _costs(report, costs)),
    }
    if folder is not None:
        folder.mkdir(exist_ok=True)
    files, charts = [], {}
    with matplotlib.rc_context(STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # the page's fonts may have it
        for name, (has_data, make) in figures.items():
            file = None if folder is None else folder / report.named(f"{name}.png")
            if not has_data:
                for old in (file.with_suffix(".png"), file.with_suffix(".pdf")) if file else ():
                    old.unlink(missing_ok=True)  # of an earlier report
                continue
            drawing = make()
            if file is None:
                drawing.figure.draw_without_rendering()
            else:
                files.append(save(drawing.figure, file))
                with saved_as("pdf"):
                    files.append(save(drawing.figure, file))
            if name == "forest" and len(report.compared) > FEW:
                charts["all_arms"] = inline(drawing, "all_arms")
                drawing = _forest(report, report.largest(FEW))
                drawing.figure.draw_without_rendering()
            charts[name] = inline(drawing, name)
    return files, charts


def _grid(widths: Sequence[float], height: float) -> tuple[Drawing, list["Axes"]]:
    """Make axes of these widths side by side, in as many rows as they need; all in inches."""
    from matplotlib.figure import Figure

    rows: list[list[float]] = [[]]
    for width in widths:
        if rows[-1] and sum(rows[-1]) + width > WIDEST:
            rows.append([])
        rows[-1].append(width)
    total = max(map(sum, rows))
    figure = Figure(figsize=(total, height * len(rows)), layout="constrained")
    axes_list = []
    rows_of_grid = figure.add_gridspec(len(rows), 1)
    for n, row in enumerate(rows):
        ratios = [*row, max(total - sum(row), 1e-3)]  # the last is left empty
        inner = rows_of_grid[n].subgridspec(1, len(ratios), width_ratios=ratios)
        axes_list += [figure.add_subplot(inner[column]) for column in range(len(row))]
    for axes in axes_list:
        axes.patch.set_visible(False)  # the page has its own background
    return Drawing(figure), axes_list


def _rank(color: str) -> tuple[bool, bool]:
    """Order arms so that colored ones cover gray ones, and the baseline all others."""
    return color == "base", color != "rest"


def _words(report: Report) -> str:
    return f"{metric_words(report.metric)} ({direction(report.mode)})"


def _wrapped(name: str, width: int) -> str:
    """Wrap a name into about two lines; the middle of a longer name is left out."""
    return fill(shortened(name, max(2 * width - 8, width)), width, break_on_hyphens=False)


def _forest(report: Report, rows: Sequence[Row]) -> Drawing:
    """Draw differences and intervals; an arrow at the edge points to a difference beyond it."""
    drawing, (axes,) = _grid([BESIDE], 1.1 + LINE * len(rows))
    # The axis has zero, and differences and intervals of all arms but outliers, which dwarf others.
    compared = [row.comparison for row in report.compared if row.comparison]
    reaches = [each.interval for each in compared if each.interval]
    bounds = [end for reach in reaches for end in (reach.low, reach.high)]
    known = [end for end in (*(each.difference for each in compared), *bounds) if isfinite(end)]
    usual = 8 * median(map(abs, known)) if known else 0.0
    ends = limits_of([0.0, *(end for end in known if abs(end) <= usual)], margin=0.08)
    for y, row in enumerate(rows):
        comparison, color = row.comparison, VERDICTS[row.kind]
        assert comparison is not None
        tip = f"{row.arm.name}\n{signed(comparison.difference, report.digits)} from the baseline"
        if reach := comparison.interval:
            axes.plot([reach.low, reach.high], [y, y], color=color, linewidth=1.8)
            tip += f"\n95 % interval {interval(reach, report.digits)}"
        at = min(max(comparison.difference, ends.low), ends.high)
        shape = "o" if at == comparison.difference else ">" if at == ends.high else "<"
        (spot,) = axes.plot([at], [y], shape, color=color, markeredgewidth=0, clip_on=False)
        drawing.mark(spot, Mark(arm=row.arm.name, tip=tip))
    axes.axvline(0, color=BASE, linestyle="--", linewidth=1.2)
    axes.set_yticks(range(len(rows)), [report.short_label(row.arm.name) for row in rows])
    axes.set(xlim=ends, ylim=(len(rows) - 0.4, -0.6))
    few = "" if len(rows) == len(report.compared) else f", the {len(rows)} largest"
    # Short lines: long names of arms leave the axis narrow, and wider labels are cut off.
    axes.set_xlabel(f"{_words(report)}\ndifference from the baseline{few}, 95 % interval")
    axes.set_label(f"{metric_words(report.metric)}: differences from the baseline")
    axes.locator_params(axis="x", nbins=6)
    axes.grid(axis="x")
    return drawing


def _curves(report: Report, points: Points) -> Drawing:
    height, last = 3.2, max(curve.steps[-1] for curve in points.curves)
    drawing, (axes,) = _grid([BESIDE], height)
    limits, ends = points.limits, []
    for curve in sorted(points.curves, key=lambda c: _rank(report.color(c.arm))):
        kind = report.color(curve.arm)
        shown = kind != "rest"
        rows = list(zip(curve.steps, curve.means, curve.spreads, strict=True))
        if curve.seeds > 1:
            around = [(x, m - s) for x, m, s in rows] + [(x, m + s) for x, m, s in reversed(rows)]
            # The page shows the band of a gray arm when it brings out the arm.
            (band,) = axes.fill(*zip(*around, strict=True), color=color_of(kind), linewidth=0,
                                alpha=0.14 if shown else 0)  # fmt: skip
            drawing.mark(band, Mark(f"curve band {kind}", curve.arm))
        dots = [index for index, row in enumerate(rows) if shown and limits.inside(row[1])]
        tips = []
        for step, mean, spread in (rows[index] for index in dots):
            seeds = f" ± {report.text(spread)} over {curve.seeds} seeds"
            several = seeds * (curve.seeds > 1)
            tips.append(f"{curve.arm}\nstep {step:,}: {report.text(mean)}{several}")
        drawing.plot(
            axes, curve.steps, curve.means, "--o" if kind == "base" else "-o",
            Mark(f"curve {kind}", curve.arm, curve.arm, tips), linewidth=1.6 if shown else 0.7,
            markersize=3.2, markeredgewidth=0, markevery=dots,
        )  # fmt: skip
        if shown:
            words = report.short_label(curve.arm)
            ends.append(Spot(curve.steps[-1], curve.means[-1], words, kind, curve.arm))
    axes.set(xlim=(0, last), ylim=limits, xlabel="optimizer step")
    name = metric_words(points.column)
    axes.set(ylabel=f"{name} ({direction(points.mode)})", label=f"Learning curves of {name}")
    axes.grid()
    _name(drawing, axes, ends, height)
    return drawing


def _name(drawing: Drawing, axes: "Axes", spots: Iterable[Spot], height: float) -> None:
    """Write names to the right, moved so that none covers another, with leads to their spots.

    height: of the axes' row, in inches.
    """
    low, high = axes.get_ylim()
    axes.autoscale(False)
    known = sorted(spots, key=lambda spot: spot.y)
    heights = [min(max(spot.y, low), high) for spot in known]
    shifted = spaced(heights, NAME / height * (high - low), high)
    where = axes.get_yaxis_transform()  # x as a share of the axes, for a name at their side
    for spot, y, text_y in zip(known, heights, shifted, strict=True):
        mark = Mark(f"label {spot.kind}", spot.arm, spot.arm)
        start = (axes.transScale + axes.transLimits).transform((spot.x, y))[0]
        drawing.plot(axes, [start, 1.015], [y, text_y], ":", mark, transform=where, linewidth=0.8,
                     clip_on=False, zorder=1)  # fmt: skip
        name = axes.text(1.02, text_y, spot.words, transform=where, color=color_of(spot.kind),
                         va="center", fontsize=8.5)  # fmt: skip
        name.set_fontweight("bold" if spot.kind == "base" else "normal")
        drawing.mark(name, mark)


def spaced(heights: Iterable[float], gap: float, high: float) -> list[float]:
    """Move sorted heights to keep the gap, by an upward and a downward pass."""
    up = list(accumulate(heights, lambda last, height: max(height, last + gap)))
    down = accumulate(
        reversed(up), lambda last, height: min(height, last - gap), initial=high + gap
    )
    return list(down)[:0:-1]


def _effects(report: Report, panels: Sequence[FactorPanel]) -> Drawing:
    widths = [
        min(max(2.6, SIDE + len(panel.options) * _label_width(panel)), WIDEST) for panel in panels
    ]
    drawing, grid = _grid(widths, 2.3)
    _level(drawing, (v for panel in panels for values in panel.values for v in values), report)
    for axes, panel, width in zip(grid, panels, widths, strict=True):
        _panel(drawing, axes, panel, (width - SIDE) / len(panel.options), report)
    return drawing


BEYOND = "outside the axis"


def _beyond(
    drawing: Drawing, axes: "Axes", x: float, values: Iterable[float], mark: Mark, report: Report,
    *, named: bool = False,
) -> None:  # fmt: skip
    """Mark values beyond the vertical axis by a triangle at its edge, with their mean next to it
    unless a name has it. mark: with the head of the tip."""
    every, limits = list(values), Limits(*axes.get_ylim())
    sides = (("^", limits.high, [v for v in every if v > limits.high], -2),
             ("v", limits.low, [v for v in every if v < limits.low], 2))  # fmt: skip
    for shape, edge, far, down in sides:
        if not far:
            continue
        words = listed(report.text(value) for value in far)
        mark = mark._replace(tip=f"{mark.tip}{BEYOND}: {words}")
        drawing.plot(axes, [x], [edge], shape, mark, clip_on=False, markersize=6, markeredgewidth=0)
        if named:
            continue
        name = axes.annotate(
            report.text(fmean(far)), (x, edge), (6, down), textcoords="offset points",
            va="top" if edge == limits.high else "bottom", fontsize=8, color=color_of(mark.kind),
        )  # fmt: skip
        drawing.mark(name, Mark(f"label {mark.kind}", mark.arm))


def _far(value: float, limits: Limits, report: Report) -> str:
    return "" if limits.inside(value) else f" ({report.text(value)})"


def _level(drawing: Drawing, values: Iterable[float], report: Report) -> None:
    limits = robust(values)
    for axes in drawing.figure.axes:
        axes.set_ylim(limits)
        axes.locator_params(axis="y", nbins=5)
        axes.grid(axis="y")
    drawing.figure.supylabel(_words(report), fontsize=9, color=SOFT)


def _label_width(panel: FactorPanel) -> float:
    return min(max(0.6, (max(map(len, panel.options)) + 3) * LETTER), 1.1)


def _panel(drawing: Drawing, axes: "Axes", panel: FactorPanel, each: float, report: Report) -> None:
    """Draw a factor. each: inches of an option."""
    for x, (option, values) in enumerate(zip(panel.options, panel.values, strict=True)):
        if not values:
            continue
        head, mean = f"{panel.factor}={option}\n", fmean(values)
        kind = "base" if x == panel.baseline else "c1"
        # Side by side, so that equal values are distinguishable.
        step = min(0.28 / each, 0.5) / max(len(values) - 1, 1)
        limits = Limits(*axes.get_ylim())
        seen = {x + step * (n - (len(values) - 1) / 2): value for n, value in enumerate(values)
                if limits.inside(value)}  # fmt: skip
        tips = [head + report.text(value) for value in seen.values()]
        drawing.plot(axes, [*seen], [*seen.values()], "o", Mark(kind, tips=tips), alpha=0.5,
                     markersize=4, markeredgewidth=0)  # fmt: skip
        _beyond(drawing, axes, x, values, Mark(kind, tip=head), report)
        bar = min(0.2 / each, 0.4)
        tip = f"{head}mean of {len(values)} runs: {report.text(mean)}"
        drawing.plot(axes, [x - bar, x + bar], [mean, mean], "-", Mark(kind, tip=tip),
                     linewidth=2.4, solid_capstyle="butt")  # fmt: skip
    every = ceil(_label_width(panel) / each - 0.01)  # of many options, every n-th is named
    ticks = range(0, len(panel.options), every)
    starred = [option + "\u00a0*" * (n == panel.baseline) for n, option in enumerate(panel.options)]
    letters = int(every * each / LETTER) - 1
    axes.set_xticks(ticks, [_wrapped(starred[x], letters) for x in ticks])
    for x, name in zip(ticks, axes.get_xticklabels(), strict=True):
        drawing.mark(name, Mark(tip=panel.options[x]))
    axes.set_xlim(-0.5, len(panel.options) - 0.5)
    axes.set_title(_wrapped(panel.factor, int(each * len(panel.options) / LETTER)))
    axes.set_label(f"{metric_words(report.metric)} by {panel.factor}: {listed(panel.options)}")


def _interactions(report: Report, pairs: Sequence[Effect]) -> Drawing:
    """Draw the means of every pair of options; lines that are not parallel are an interaction."""
    width, height = 3.1, 2.6
    drawing, grid = _grid([width] * len(pairs), height)
    _level(drawing, (mean for effect in pairs for mean in effect.means.values()), report)
    for axes, effect in zip(grid, pairs, strict=True):
        (first, second), (along, apart) = effect.factors, effect.options
        ends, limits = [], Limits(*axes.get_ylim())
        for index, other in enumerate(apart):
            kind = f"c{(index - 1) % MOST_COLORS + 1}" if index else "base"
            means = {n: effect.means[option, other] for n, option in enumerate(along)
                     if (option, other) in effect.means}  # fmt: skip
            if not means:
                continue
            heads = {n: f"{first}={along[n]}\n{second}={other}\nmean " for n in means}
            seen = [at for at, mean in enumerate(means.values()) if limits.inside(mean)]
            tips = [head + report.text(means[n]) for n, head in heads.items()
                    if limits.inside(means[n])]  # fmt: skip
            drawing.plot(axes, [*means], [*means.values()], "-o", Mark(kind, tips=tips),
                         markevery=seen)  # fmt: skip
            for n, mean in means.items():
                last = n == max(means)
                _beyond(drawing, axes, n, [mean], Mark(kind, tip=heads[n]), report, named=last)
            end = means[max(means)]
            words = shortened(other, 14) + _far(end, limits, report)
            ends.append(Spot(max(means), end, words, kind))
        letters = max(int(width / 2 / len(along) / LETTER), 4)
        axes.set_xticks(range(len(along)), [_wrapped(option, letters) for option in along])
        axes.set_xlim(-0.35, len(along) - 0.75)
        axes.set_title(f"{shortened(first, 36)} along,\n{shortened(second, 34)} as lines")
        axes.set_label(f"{metric_words(report.metric)} by {effect.name}")
        _name(drawing, axes, ends, height)
    return drawing


SIDES = (("training time (s)", "seconds", duration), ("training FLOPs", "flops", amount))


def _sides(costs: Iterable[Cost]) -> list[tuple[str, str, Callable[[float], str]]]:
    """Return the known measures of cost; the second only if arms differ in it."""
    values = [{getattr(cost, key) for cost in costs} - {None} for _, key, _ in SIDES]
    return [side for least, side in enumerate(SIDES) if len(values[least]) > least]


def _ladder(found: Ladder, report: Report) -> Drawing:
    """Draw the mean of each arm by its training FLOPs at every size, and its scaling law."""
    import numpy as np
    from matplotlib.ticker import EngFormatter, NullFormatter

    height, spots = 3.4, []
    drawing, (axes,) = _grid([BESIDE], height)
    base = (report.baseline.arm.name, found.compute, found.means)
    arms = [(climb.arm, climb.flops, climb.means) for climb in found.climbs]
    sign = -1.0 if report.mode == "max" else 1.0
    for arm, flops, means in sorted([base, *arms], key=lambda each: _rank(report.color(each[0]))):
        kind = report.color(arm)
        sizes = [name for name in means if name in flops]
        x, y = np.array([flops[name] for name in sizes]), np.array([means[name] for name in sizes])
        tips = [f"{arm}, {name}\n{report.text(means[name])}" for name in sizes]
        fitted, at = len(sizes) >= LEAST, x
        if fitted:
            at = np.geomspace(x.min(), x.max(), 60)
            law = Law.fitted(x, sign * y[None])
            drawing.plot(axes, at, sign * law.losses(at)[0], "-", Mark(f"curve {kind}", arm),
                         linewidth=1.2)  # fmt: skip
        drawing.plot(axes, x, y, "o" if fitted else "o-", Mark(kind, arm, arm, tips), markersize=5)
        if kind != "rest" and sizes:
            spots.append(Spot(x[-1], y[-1], report.short_label(arm), kind, arm))
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(EngFormatter(sep=" "))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set(xlabel="training FLOPs", ylabel=_words(report), label="Scaling of every arm")
    axes.grid()
    _name(drawing, axes, spots, height)
    return drawing


def _costs(report: Report, costs: Sequence[Cost]) -> Drawing:
    from matplotlib.ticker import EngFormatter

    height, sides, name = 3.4, _sides(costs), metric_words(report.metric)
    limits = robust(end for c in costs for end in (c.value - c.spread, c.value + c.spread))
    drawing, grid = _grid([WIDEST / 2] * len(sides), height)
    for axes, (what, key, show) in zip(grid, sides, strict=True):
        spots = []
        axes.set_ylim(limits)
        for cost in sorted(costs, key=lambda c: _rank(report.color(c.arm))):
            if (at := getattr(cost, key)) is None:
                continue
            arm, kind, mean, spread = cost.arm, report.color(cost.arm), cost.value, cost.spread
            words = f"{report.text(mean)} ± {report.text(spread)}"
            mark = Mark(kind, arm, f"{arm}\n{name} {words}\n{what}: {show(at)}")
            ends = [mean - spread, mean + spread]
            if limits.inside(mean):
                drawing.plot(axes, [at, at], ends, "-", mark, linewidth=1.2)
                face = BACK if kind == "base" else None
                drawing.plot(axes, [at], [mean], "o", mark, markersize=7, markerfacecolor=face)
            else:
                mark = Mark(kind, arm, f"{arm}\n")
                _beyond(drawing, axes, at, [mean], mark, report, named=kind != "rest")
            if kind != "rest":
                words = report.short_label(arm) + _far(mean, limits, report)
                spots.append(Spot(at, mean, words, kind, arm))
        if show is amount:
            axes.xaxis.set_major_formatter(EngFormatter(sep=" "))
        axes.set(xlabel=what, ylabel=_words(report), label=f"{name} by {what}")
        axes.grid()
        _name(drawing, axes, spots, height)
    return drawing
