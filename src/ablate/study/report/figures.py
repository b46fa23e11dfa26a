"""The PNG figures: forest plot, learning curves, main effects, cost against quality."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ablate.figures.save import save
from ablate.study.numbers import shortened
from ablate.study.report.points import Cost, Curve, Panel, Points
from ablate.study.report.rows import Report
from ablate.study.report.words import direction, metric_words

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito (2008), darkened where it would not show on white; the baseline is black.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b58900", "#56b4e9", "#7a5195")
REST, BASE = "#b9c0c8", "#000000"
VERDICTS = {"better": "#0060a8", "worse": "#b34700", "equivalent": "#00735c", "open": "#57606a"}
LINE = 0.3  # inches of a row in the forest plot
MOST_ROWS = 120
MOST_OPTIONS = 6  # named along an axis; of more, every n-th


def draw(report: Report, points: Points, folder: Path) -> list[Path]:
    """Write the figures that have data, and delete old files of the others."""
    panels, costs = points.panels, points.costs
    figures = {
        "forest": _forest(report) if report.compared else None,
        "curves": _curves(report, points.curves) if points.curves else None,
        "effects": _effects(report, panels) if any(map(any, (p.values for p in panels))) else None,
        "cost": _cost(report, costs) if any(c.seconds is not None for c in costs) else None,
    }
    folder.mkdir(exist_ok=True)
    for name, figure in figures.items():
        if figure is None:
            (folder / f"{name}.png").unlink(missing_ok=True)  # of an earlier report
    return [save(figure, folder / f"{name}.png") for name, figure in figures.items() if figure]


def _figure(width: float, height: float) -> "Figure":
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def _colour(arm: str, report: Report) -> str:
    if arm == report.baseline.arm.name:
        return BASE
    place: Mapping[str, int] = report.colours
    return COLOURS[place[arm] - 1] if arm in place else REST


def _name(report: Report) -> str:
    return f"{metric_words(report.metric)} ({direction(report.mode)})"


def _forest(report: Report) -> "Figure":
    rows = report.compared[:MOST_ROWS]
    figure = _figure(7.0, 1.4 + LINE * len(rows))
    axes = figure.subplots()
    for place, row in enumerate(rows):
        found, colour = row.comparison, VERDICTS[row.kind]
        assert found is not None
        if reach := found.t_interval:
            axes.plot([reach.low, reach.high], [place, place], color=colour, linewidth=1.8)
        if reach := found.bootstrap:
            ends = [reach.low, reach.high]
            axes.plot(ends, [place, place], color=colour, linewidth=6, alpha=0.2)
        axes.plot([found.difference], [place], "o", color=colour)
    axes.axvline(0, color=BASE, linestyle="--", linewidth=1.2)
    axes.set_yticks(range(len(rows)), [_wrapped(row.arm.name) for row in rows], parse_math=False)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    # Short lines: long names of arms leave the axis narrow, and wider labels are cut off.
    axes.set_xlabel(f"{_name(report)}\ndifference from the baseline\n95 % t interval")
    axes.grid(axis="x", alpha=0.3)
    return figure


def _wrapped(name: str, width: int = 38) -> str:
    """Wrap a name into at most two lines; the middle of a longer name is left out."""
    from textwrap import fill

    return fill(shortened(name, 2 * width - 8), width, break_on_hyphens=False)


def _curves(report: Report, curves: list[Curve]) -> "Figure":
    figure = _figure(8.0, 4.4)
    axes = figure.subplots()
    base = report.baseline.arm.name
    for curve in sorted(curves, key=lambda one: (one.arm == base, one.arm in report.colours)):
        colour = _colour(curve.arm, report)
        named = colour != REST
        style = "--" if curve.arm == base else "-"
        label = _wrapped(report.labels[curve.arm], 30) if named else None
        axes.plot(curve.steps, curve.means, style, color=colour, label=label,
                  linewidth=1.8 if named else 0.7)  # fmt: skip
        if named and curve.seeds > 1:
            low = [m - s for m, s in zip(curve.means, curve.spreads, strict=True)]
            high = [m + s for m, s in zip(curve.means, curve.spreads, strict=True)]
            axes.fill_between(curve.steps, low, high, color=colour, alpha=0.15, linewidth=0)
    axes.set(xlabel="optimizer step", ylabel=_name(report))
    axes.grid(alpha=0.3)
    _legend(axes)
    return figure


def _legend(axes: "Axes") -> None:
    """Put the legend beside the axes, where it covers nothing."""
    legend = axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), fontsize=8)
    for words in legend.get_texts():
        words.set_parse_math(False)


def _effects(report: Report, panels: list[Panel]) -> "Figure":
    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    figure = _figure(3.4 * columns + 0.4, 2.8 * rows)
    grid = list(figure.subplots(rows, columns, squeeze=False, sharey=True).flat)
    for axes, panel in zip(grid, panels, strict=False):
        _panel(axes, panel)
    for axes in grid[len(panels) :]:
        axes.remove()
    figure.supylabel(_name(report), fontsize=9)
    return figure


def _panel(axes: "Axes", panel: Panel) -> None:
    for place, values in enumerate(panel.values):
        colour = BASE if place == panel.baseline else COLOURS[0]
        axes.plot([place] * len(values), values, "o", color=colour, alpha=0.4, markersize=4)
        if values:
            mean = sum(values) / len(values)
            axes.plot([place - 0.2, place + 0.2], [mean, mean], color=colour, linewidth=2.5)
    every = -(-len(panel.options) // MOST_OPTIONS)
    places = range(0, len(panel.options), every)
    names = [_wrapped(panel.options[place], 12) for place in places]
    axes.set_xticks(places, names, fontsize=8, parse_math=False)
    axes.set_xlim(-0.6, len(panel.options) - 0.4)
    axes.set_title(panel.factor, fontsize=9, parse_math=False)
    axes.grid(axis="y", alpha=0.3)


def _cost(report: Report, costs: list[Cost]) -> "Figure":
    figure = _figure(8.0, 4.4)
    axes = figure.subplots()
    for cost in costs:
        if cost.seconds is not None:
            colour = _colour(cost.arm, report)
            label = _wrapped(report.labels[cost.arm], 30) if colour != REST else None
            axes.errorbar(cost.seconds, cost.value, yerr=cost.spread, fmt="o", color=colour,
                          label=label)  # fmt: skip
    _legend(axes)
    axes.set(xlabel="training time (seconds)", ylabel=_name(report))
    axes.grid(alpha=0.3)
    return figure
