"""How long a study takes, from its runs that are finished."""

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any


@dataclass(frozen=True)
class Done:
    """A finished run. wall_seconds: with what it does before and after training; flops: of the
    whole training."""

    arm: str
    wall_seconds: float
    train_seconds: float
    flops: float


def done(result: Mapping[str, Any]) -> Done | None:
    """From what result.json holds; None unless the run is finished."""
    if result["status"] != "finished":
        return None
    return Done(
        arm=result["arm"],
        # A pack's time is that of all its seeds; train_seconds is a share of it already.
        wall_seconds=result["wall_seconds"] / result.get("packed", 1),
        train_seconds=result["train_seconds"],
        flops=float(result["flops_per_step"] * result["steps"]),
    )


def seconds(arm: str, flops: float, finished: Sequence[Done]) -> float | None:
    """Of one run of an arm with so many FLOPs in its whole training; None where nothing is known.

    As the arm's own runs took; without any, training as long as its FLOPs take elsewhere, and
    beside it what the others' runs need beside theirs.
    """
    if own := [run.wall_seconds for run in finished if run.arm == arm]:
        return median(own)
    counted = [run for run in finished if run.flops > 0]
    if not counted:
        return None
    pace = median(run.train_seconds / run.flops for run in counted)
    beside = median(run.wall_seconds - run.train_seconds for run in counted)
    return beside + pace * flops


def left(runs: Sequence[float | None], slots: int) -> float | None:
    """Seconds until all runs are done, `slots` at once, each slot taking the next that waits.

    runs: what each still needs, in the order of launching; None: unknown, and so is the whole.
    """
    assert slots > 0
    free = [0.0] * slots
    for needed in runs:
        if needed is None:
            return None
        heapq.heapreplace(free, free[0] + needed)
    return max(free)
