"""Differences that were still changing when training ended.

A verdict is about the steps that were trained. Where the curves of an arm and of the baseline still
came closer or drew apart at the end, more steps may give another one, which the numbers at the end
alone do not show.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ablate.study.report.points import Curve, curve_column, curve_of
from ablate.study.report.words import listed, signed

if TYPE_CHECKING:
    from ablate.study.report.rows import Report

SINCE = 0.75  # of the steps: the last quarter of training is looked at
MOVED = 0.25  # of the difference at the end: a change that is larger is told


def unsettled(report: Report) -> list[str]:
    """A sentence on the arms that are better or worse by such a difference, or nothing."""
    study = report.study
    column = curve_column(study, report.metric)
    baseline = curve_of(study, study.baseline.name, column)
    found = []
    for row in report.others:
        if row.kind not in ("better", "worse"):
            continue
        points = _differences(curve_of(study, row.arm.name, column), baseline)
        before = [point for point in points if point[0] <= SINCE * points[-1][0]]
        if before and abs(points[-1][1] - before[-1][1]) > MOVED * abs(points[-1][1]):
            way = " to ".join(
                f"{signed(value, report.places)} at step {step:,}"
                for step, value in (before[-1], points[-1])
            )
            found.append(f"{report.labels[row.arm.name]} (from {way})")
    said = "Still changing in the last quarter of training, so that more steps may say otherwise"
    return [f"{said}: {listed(found)}."] if found else []


def _differences(curve: Curve, baseline: Curve) -> list[tuple[int, float]]:
    """Step and difference of the means, wherever both were validated."""
    of_baseline = dict(zip(baseline.steps, baseline.means, strict=True))
    return [
        (step, mean - of_baseline[step])
        for step, mean in zip(curve.steps, curve.means, strict=True)
        if step in of_baseline
    ]
