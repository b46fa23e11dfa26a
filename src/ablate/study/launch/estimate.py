"""Estimate the duration of a study from its runs."""

import heapq
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from ablate.study.launch.state import State
from ablate.study.numbers import duration


def _own(result: Mapping[str, Any]) -> float:
    """The share of the steps that a run has trained itself: not those of a trunk."""
    steps, trunk = result.get("steps", 0), result.get("trunk")
    return (steps - trunk["step"]) / steps if trunk and steps else 1.0


@dataclass(frozen=True)
class Durations:
    """The runs of a study. states: by folder; arms: by folder, if not the name of the folder
    without the id of the run; flops: of the whole training of an arm, as far as known."""

    states: Mapping[str, State]
    arms: Mapping[str, str] = field(default_factory=dict)
    flops: Mapping[str, float] = field(default_factory=dict)

    def _arm(self, folder: str) -> str:
        return self.arms.get(folder) or folder.rpartition("-")[0]

    def seconds(self, arm: str) -> float | None:
        """Estimate a run of an arm; None if no run is finished or trains.

        The median of the arm's own runs; without any, its FLOPs times the median seconds per FLOP
        of the three trainings with the most similar FLOPs (the larger a model, the faster a FLOP),
        plus the median time outside training; without FLOPs the median of all.
        """
        finished = {f: s.result for f, s in self.states.items() if s.name == "finished"}
        took = {f: _own(r) * r["wall_seconds"] for f, r in finished.items() if "wall_seconds" in r}
        if own := [seconds for folder, seconds in took.items() if self._arm(folder) == arm]:
            return median(own)
        running = {f: s.steps / s.rate for f, s in self.states.items() if s.rate and s.steps}
        trained = [
            (r["train_seconds"], flops)
            for r in finished.values()
            if (flops := r.get("flops_per_step", 0) * r.get("steps", 0)) and "train_seconds" in r
        ]
        trained += [
            (seconds, flops)
            for folder, seconds in running.items()
            if (flops := self.flops.get(self._arm(folder)))
        ]
        if trained and (flops := self.flops.get(arm)):
            similar = sorted(trained, key=lambda run: abs(math.log(run[1] / flops)))[:3]
            return self.outside + flops * median(time / done for time, done in similar)
        return median(took.values() or running.values()) if took or running else None

    @property
    def outside(self) -> float:
        """The median seconds of a run before and after its training; 0 if unknown."""
        results = [state.result for state in self.states.values()]
        known = [r for r in results if {"wall_seconds", "train_seconds"} <= r.keys()]
        return median(r["wall_seconds"] - r["train_seconds"] for r in known) if known else 0.0

    def _rest(self, folder: str) -> float | None:
        now = self.states[folder]
        if now.name != "running" or not now.rate or now.step is None or now.steps is None:
            return self.seconds(self._arm(folder))
        return (now.steps - now.step) / now.rate + self.outside

    def left(self, folders: Iterable[str], slots: int) -> str | None:
        """The time until these runs are done, if each free slot takes the next waiting one; None
        if it is unknown, or nothing is left."""
        needed = [self._rest(folder) for folder in folders]
        free = [0.0] * min(slots, len(needed))
        for seconds in needed if free else ():
            if seconds is None:
                return None
            heapq.heapreplace(free, free[0] + seconds)
        return duration(round(max(free))) if free else None
