"""A study with blocks (study.blocks), in words: each arm in each block, and on the ladder."""

from __future__ import annotations

from collections.abc import Sequence

from ablate.study.analysis.ladder import Ladder, Speedup, ladder
from ablate.study.numbers import estimate, signed
from ablate.study.report.rows import Report, Row

NOTE = (
    "Each block is a study of its own, with its own baseline and report; over all blocks an arm is"
    " paired with the baseline of the same block and seed. A verdict over all is on these blocks,"
    " not on others."
)
CLIMB = (
    "Slope: how much the difference grows with each doubling of the baseline's training FLOPs, by"
    " seed. Speed-up: how many times the arm's FLOPs the baseline would need for the arm's value,"
    " read off its own values between the blocks; * extrapolated beyond them."
)


def heads(report: Report) -> tuple[str, ...]:
    return ("arm", *report.blocks, "over all")


def rows(report: Report) -> list[tuple[str, ...]]:
    """The difference and the verdict of each arm, by block. As `heads`."""
    return [
        (
            row.arm.name,
            *(_words(_row(part, row.arm.name), part) for part in report.blocks.values()),
            _words(row, report),
        )
        for row in report.others
    ]


ALSO = (
    "Other metrics that the study asked for: difference from the baseline and verdict. p values are"
    " corrected over the arms of each metric, not over metrics."
)


def also_heads(report: Report) -> tuple[str, ...]:
    return ("arm", *report.also)


def also_rows(report: Report) -> list[tuple[str, ...]]:
    """As `also_heads`."""
    return [
        (
            row.arm.name,
            *(_words(_row(other, row.arm.name), other) for other in report.also.values()),
        )
        for row in report.others
    ]


def _row(report: Report, arm: str) -> Row:
    return next(row for row in report.rows if row.arm.name == arm)


def _words(row: Row, report: Report) -> str:
    if row.comparison is None:
        return "not compared"
    verdict = row.comparison.verdict.kind
    return f"{signed(row.difference or 0.0, report.decimals)}, {verdict}"


def climbs(report: Report) -> Ladder | None:
    return ladder(report.study, report.metric, report.mode)


def climb_heads(found: Ladder) -> tuple[str, ...]:
    return ("arm", "slope", *(f"speed-up at {block}" for block in found.compute))


def climb_rows(found: Ladder) -> list[tuple[str, ...]]:
    """As `climb_heads`."""
    return [
        (climb.arm, estimate(climb.slope, climb.interval), *map(_times, climb.speedups.values()))
        for climb in found.climbs
    ]


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
        for arm, *each in also_rows(report)
        if each
    ]
    if not report.blocks:
        return also
    factor = report.study.plan["blocks"]["factor"]
    found = [
        f"{arm}: "
        + "; ".join(f"{factor}={b} {words}" for b, words in zip(report.blocks, each, strict=True))
        for arm, *each, _ in rows(report)
    ]
    if on := climbs(report):
        found += [
            f"{arm}: {slope} per doubling of the baseline's FLOPs; speed-up "
            + ", ".join(f"{t} at {factor}={b}" for b, t in zip(on.compute, times, strict=True))
            for arm, slope, *times in climb_rows(on)
        ]
    return [*also, *found, NOTE]
