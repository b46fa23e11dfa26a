"""Estimate the duration of a study from its finished runs."""

import heapq
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from ablate.run_files.shape import schema_error

Result = Mapping[str, Any]  # the content of result.json
# wall_seconds includes work before and after training.
USED = {
    "arm": object,
    "wall_seconds": float,
    "train_seconds": float,
    "flops_per_step": int,
    "steps": int,
}


def done(results: Iterable[Result]) -> list[Result]:
    """Return those of finished runs."""
    return [r for r in results if r.get("status") == "finished" and not schema_error(r, USED)]


def seconds(arm: str, flops: float, finished: Sequence[Result]) -> float | None:
    """Estimate a run of an arm with `flops` in its whole training; None without finished runs.

    The median of the arm's own runs; without any, the median seconds per FLOP of the other arms'
    training, plus their median time outside training.
    """
    if durations := [run["wall_seconds"] for run in finished if run["arm"] == arm]:
        return median(durations)
    counted = [run for run in finished if run["flops_per_step"] * run["steps"] > 0]
    if not counted:
        return None
    pace = median(run["train_seconds"] / (run["flops_per_step"] * run["steps"]) for run in counted)
    beside = median(run["wall_seconds"] - run["train_seconds"] for run in counted)
    return beside + pace * flops


def left(runs: Sequence[float | None], slots: int) -> float | None:
    """Return the seconds until all runs are done, if each free slot takes the next waiting run.

    runs: seconds that each needs, in launch order; if one is unknown (None), so is the result.
    """
    assert slots > 0
    free = [0.0] * min(slots, len(runs))
    for needed in runs:
        if needed is None:
            return None
        heapq.heapreplace(free, free[0] + needed)
    return max(free, default=0.0)
