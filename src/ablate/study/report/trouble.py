"""Rows of the other tables: differences, tuning, and failed or excluded runs."""

from collections.abc import Sequence

from ablate.study.analysis.collect import Run
from ablate.study.numbers import NOTHING, counted, listed
from ablate.study.plan.design import entry_text
from ablate.study.plan.tune import edges
from ablate.study.report.rows import Report

DIFFERING = ("arm", "differs from the baseline by")


def differing(report: Report) -> list[list[str]]:
    """Return arm, and a line for each config key with another value than in the baseline; nothing
    of results of another program, whose configs are unknown."""
    if report.study.source:
        return []
    rows = []
    for arm in report.study.others:
        lines = []
        for key, pair in arm.differs.items():
            how = " (matched to the baseline's budget)" if key in arm.set else ""
            how = " (tuned)" if key in arm.tuned else how
            lines.append(f"{key}: {_shown(pair[0])} → {_shown(pair[1])}{how}")
        same = f"nothing: these are the runs of {arm.same_as}" if arm.same_as else "nothing"
        rows.append([arm.name, "\n".join(lines) or same])
    return rows


def _shown(value: object) -> str:
    return "unset" if value is None else str(value)


TUNED, TUNING = "How each arm was tuned", ("arm", "tried", "mean", "chosen", "remarks")


def tuned(report: Report) -> str:
    """Describe the table of tuning."""
    seeds = report.study.plan.get("tune", {}).get("seeds", [])
    count = f"{counted(len(seeds), 'seed')} ({listed(map(str, seeds))})"
    return (
        f"Each arm was tuned separately by the mean of {report.study.metric} over {count}, on"
        " seeds not used in the comparison."
    )


def tuning(report: Report) -> list[list[str]]:
    """Return arm, point tried, its mean, whether it was chosen, and problems or doubts."""
    rows = []
    for arm in report.study.arms:
        for trial in arm.tuning:
            point = " ".join(f"{key}={value}" for key, value in trial["point"].items())
            mean = NOTHING if trial["mean"] is None else f"{trial['mean']:.4g}"
            chosen = "chosen" if trial["chosen"] else ""
            doubts = edges(trial["point"], arm.tuning) if chosen else ()
            rows.append([arm.name, point, mean, chosen, "; ".join([*trial["problems"], *doubts])])
    return rows


TROUBLES = ("arm", "seed", "state", "reason")


def troubles(report: Report) -> list[list[str]]:
    """Return arm, seed, state, reason: runs without a result, invalid arms, excluded cells, arms
    without effect."""
    study = report.study
    rows = _grouped(study.runs) + _grouped(study.tuning, " (tuning)")
    for entry in study.plan.get("illegal") or []:
        rows.append([entry["arm"], NOTHING, "invalid", entry["reason"]])
    for entry in study.plan.get("excluded") or []:
        by = entry_text(entry["by"])
        rows.append([entry["arm"], NOTHING, "excluded", f"study.exclude: {by}"])
    for row in report.others:
        if row.arm.no_effect and row.arm.same_as is None:
            why = "the model is the baseline's: same parameters, same initial outputs"
            rows.append([row.arm.name, NOTHING, "no effect", why])
    return rows


STATES = {"missing": "not run yet", "queued": "waits", "running": "trains now"}


def _grouped(runs: Sequence[Run], note: str = "") -> list[list[str]]:
    """Put runs of an arm that ended in the same way into one row."""
    by_outcome: dict[tuple[str, str, str], list[int]] = {}
    for run in runs:
        if not run.finished:
            reason = run.detail or STATES.get(run.state, "")
            by_outcome.setdefault((run.arm + note, run.state, reason), []).append(run.seed)
    return [
        [arm, listed(map(str, seeds), 12), state, reason]
        for (arm, state, reason), seeds in by_outcome.items()
    ]
