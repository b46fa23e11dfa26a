"""The numbers behind the figures, for both the page and the PNGs."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from math import isfinite
from statistics import median
from typing import NamedTuple

from ablate.study.analysis.collect import Study
from ablate.study.analysis.curves import TRAINING, Curve, curve_column, curve_of, task_metric
from ablate.study.analysis.rows import Report

MOST_CURVES = 60
MOST_PANELS = 24
SETTLED = 0.3  # share of training at the start that does not set the limits of the curves


class Limits(NamedTuple):
    """The ends of an axis."""

    low: float
    high: float

    def inside(self, value: float) -> bool:
        return self.low <= value <= self.high


def limits_of(values: Iterable[float], margin: float = 0.06) -> Limits:
    """Return the ends of an axis that includes all the values, with a margin on both sides."""
    known = [value for value in values if isfinite(value)]
    low, high = (min(known), max(known)) if known else (0.0, 1.0)
    room = (high - low) * margin or abs(high) * 0.1 or 1.0
    return Limits(low - room, high + room)


FAR = 8  # times the usual distance from the median, beyond which a value may be an outlier
FLAT = 0.1  # share of the axis: outliers that press the rest into less are left out


def robust(values: Iterable[float]) -> Limits:
    """Return the ends of an axis for all the values, or, if outliers would flatten the rest, for
    the rest."""
    known = [value for value in values if isfinite(value)]
    middle = median(known) if known else 0.0
    usual = median([abs(value - middle) for value in known if value != middle] or [0.0])
    near = [value for value in known if abs(value - middle) <= FAR * usual]
    flat = near and max(near) - min(near) < FLAT * (max(known) - min(known))
    return limits_of(near if flat else known)


@dataclass(frozen=True)
class FactorPanel:
    """One factor: its options in order, and the values of all runs that had each."""

    factor: str
    options: list[str]
    values: list[list[float]]
    baseline: int  # place of the baseline's option


@dataclass(frozen=True)
class Points:
    """The numbers of the curves and main effects. column: that of metrics.csv that the curves show;
    mode: whether less or more of it is better."""

    column: str
    mode: str
    curves: list[Curve]
    panels: list[FactorPanel]

    @cached_property
    def limits(self) -> Limits:
        """The vertical axis of the curves, for their values after the steep start."""
        return robust(self.settled())

    def settled(self) -> Iterator[float]:
        """Yield the values after the steep start; all values of a curve that ends before."""
        after = SETTLED * max((curve.steps[-1] for curve in self.curves), default=0)
        for curve in self.curves:
            for step, mean, spread in zip(curve.steps, curve.means, curve.spreads, strict=True):
                if step > after or curve.steps[-1] <= after:
                    yield from (mean - spread, mean + spread)


def gather(report: Report) -> Points:
    column = curve_column(report.study, report.metric)
    drawn = curves(report, column)
    if not drawn:  # validated once: a point is not a curve
        column, drawn = TRAINING, curves(report, TRAINING)
    task, mode = task_metric(report.study), report.mode
    mode = "min" if column == TRAINING else task["mode"] if column == task.get("name") else mode
    return Points(column, mode, drawn, panels(report.study, report.metric))


def curves(report: Report, column: str) -> list[Curve]:
    """Return the curves of the baseline and of the colored arms, then of others up to
    `MOST_CURVES`; none if no curve has two points."""
    study, names = report.study, [report.study.baseline.name, *report.colors]
    names += [arm.name for arm in study.others if arm.name not in names and arm.same_as is None]
    curves = [curve_of(study, name, column) for name in names[:MOST_CURVES]]
    drawn = any(len(curve.steps) > 1 for curve in curves)
    return [curve for curve in curves if curve.steps and drawn]


def panels(study: Study, metric: str) -> list[FactorPanel]:
    """Return the main effects, factor by factor.

    In crossed designs every run counts, so that an option's mean is over all settings of the other
    factors; otherwise the baseline and the arms that change only this factor.
    """
    found = []
    for factor, options in list((study.plan.get("factors") or {}).items())[:MOST_PANELS]:
        baseline = study.plan["own"][factor]
        values: dict[str, list[float]] = {option: [] for option in options}
        for arm in study.arms:
            alone = set(arm.changes) <= {factor}
            if arm.same_as is None and (alone or study.plan.get("design") == "factorial"):
                option = arm.changes.get(factor, baseline)
                values.setdefault(option, []).extend(study.values(arm.name, metric).values())
        found.append(FactorPanel(factor, [*values], [*values.values()], [*values].index(baseline)))
    return found
