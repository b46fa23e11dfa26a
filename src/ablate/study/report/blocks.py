"""A study with blocks (study.blocks), in words: each arm in each block, and on the ladder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ablate.study.analysis.ladder import Climb, Ladder, Speedup, ladder
from ablate.study.numbers import decimals, estimate, mean_and_sd, signed
from ablate.study.report.rows import Report, Row

NOTE = (
    "Each block is a separate study, with its own baseline; over all blocks each seed"
    " counts once, by its mean over them. A verdict over all blocks applies only to these blocks."
)
CLIMB = (
    "Slope: how much the difference grows with each doubling of the baseline's training FLOPs, by"
    " seed. Speed-up: compute the baseline needs to match the arm, as a multiple of the arm's"
    " FLOPs, interpolated between the blocks; * extrapolated."
)
ALSO = (
    "Additional metrics: difference from the baseline and verdict. p values are"
    " corrected over the arms of each metric, not over metrics."
)


MEASURED = (
    "Other metrics of the task, from the same weights: mean ± standard deviation over the seeds,"
    " not tested; study.extra_metrics=[METRIC] adds tests. Measures by length or class: runs.csv."
)


class Table(NamedTuple):
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]


def by_block(report: Report) -> Table:
    """The difference and the verdict of each arm, by block."""
    return _verdicts(report, [*report.blocks.items(), ("over all", report)])


def by_metric(report: Report) -> Table:
    """The same by the metrics of study.extra_metrics."""
    return _verdicts(report, [*report.also.items()])


def measured(report: Report) -> Table:
    """Other metrics of the task, by arm."""
    columns = []
    for by_arm in report.measures.values():
        means = [each.mean for each in by_arm.values() if each.mean is not None]
        digits = decimals(means, [each.sd for each in by_arm.values()])
        columns.append(
            {arm: mean_and_sd(each.mean, each.sd, digits) for arm, each in by_arm.items()}
        )
    names = [row.arm.name for row in report.rows]
    rows = [[name, *(column[name] for column in columns)] for name in names]
    return Table(["arm", *report.measures], rows)


def _verdicts(report: Report, columns: Sequence[tuple[str, Report]]) -> Table:
    heads = ["arm", *(head for head, _ in columns)]
    words = [{row.arm.name: _words(row, each) for row in each.rows} for _, each in columns]
    arms = [row.arm.name for row in report.others]
    return Table(heads, [[arm, *(by_arm[arm] for by_arm in words)] for arm in arms])


def _words(row: Row, report: Report) -> str:
    if row.comparison is None:
        return "not compared"
    verdict = row.comparison.verdict.kind
    return f"{signed(row.difference or 0.0, report.decimals)}, {verdict}"


def climbs(report: Report) -> Ladder | None:
    return ladder(report.study, report.metric, report.mode)


def on_ladder(climbed: Ladder) -> Table:
    heads = ["arm", "slope", *(f"speed-up at {block}" for block in climbed.compute)]
    rows = [[c.arm, _slope(c), *map(_times, c.speedups.values())] for c in climbed.climbs]
    return Table(heads, rows)


def _slope(climb: Climb) -> str:
    return estimate(climb.slope, climb.interval)


def _times(speedup: Speedup | None) -> str:
    if speedup is None:
        return "-"
    return f"{speedup.factor:.3g} times{'*' if speedup.extrapolated else ''}"


def title(report: Report) -> str:
    return f"By {report.study.plan['blocks']['factor']}"


def lines(report: Report) -> Sequence[str]:
    """For the terminal."""
    also = [
        f"{arm}: " + "; ".join(f"{m} {words}" for m, words in zip(report.also, each, strict=True))
        for arm, *each in by_metric(report).rows
        if each
    ]
    if not report.blocks:
        return also
    factor = report.study.plan["blocks"]["factor"]
    in_blocks = [
        f"{arm}: "
        + "; ".join(f"{factor}={b} {words}" for b, words in zip(report.blocks, each, strict=True))
        for arm, *each, _ in by_block(report).rows
    ]
    climbed = climbs(report)
    on_the_ladder = [
        f"{climb.arm}: {_slope(climb)} per doubling of the baseline's FLOPs; speed-up "
        + ", ".join(f"{_times(times)} at {factor}={b}" for b, times in climb.speedups.items())
        for climb in (climbed.climbs if climbed else ())
    ]
    return [*also, *in_blocks, *on_the_ladder, NOTE]
