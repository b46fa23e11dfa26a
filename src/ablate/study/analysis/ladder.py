"""The same arms at several sizes or budgets (study.blocks): slopes and effective speed-ups.

Blocks on the same data make a ladder, its rungs in the order of the baseline's training FLOPs. Of
each arm: the slope of its difference from the baseline over the logarithm of these FLOPs, by seed;
and at each rung the speed-up, how many times the arm's training FLOPs the baseline would need for
the arm's value (as in Kaplan et al. 2020, https://arxiv.org/abs/2001.08361, loss falls with the
logarithm of compute): the baseline's means are interpolated between rungs, linearly in that
logarithm. Beyond the rungs the last two are extended, which is marked as extrapolated.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import exp, log
from statistics import fmean

import numpy as np

from ablate.study.analysis.collect import Study
from ablate.study.analysis.noise import Noise, error
from ablate.study.analysis.stats import LEVEL, Interval

SAME = 0.01  # relative difference of FLOPs below which two blocks are one rung


@dataclass(frozen=True)
class Speedup:
    factor: float
    extrapolated: bool


@dataclass(frozen=True)
class ScalingSlope:
    """An arm on the ladder. slope: of its difference, in units of the metric per doubling of the
    baseline's FLOPs; speedups: by block, None if the baseline does not improve with compute, or
    the arm's FLOPs are not known."""

    arm: str
    slope: float
    interval: Interval | None
    n: int
    speedups: Mapping[str, Speedup | None]


@dataclass(frozen=True)
class Ladder:
    """compute: block -> training FLOPs of the baseline, ascending."""

    compute: Mapping[str, float]
    climbs: tuple[ScalingSlope, ...]


def ladder(study: Study, metric: str, mode: str) -> Ladder | None:
    """None of blocks on different data, or of equal compute: their values make no curve."""
    data = [(part.plan.get("baseline") or {}).get("data") for part in study.blocks.values()]
    if len(data) < 2 or any(each != data[0] for each in data):
        return None
    of = {name: _flops(part, part.baseline.name) for name, part in study.blocks.items()}
    compute = {name: c for name, c in sorted(of.items(), key=lambda item: item[1] or 0.0) if c}
    rungs = list(compute.values())
    if len(rungs) < len(of) or any(b <= a * (1 + SAME) for a, b in pairwise(rungs)):
        return None
    parts = {name: study.blocks[name] for name in compute}
    climbs = [_climb(arm.name, parts, compute, metric, mode) for arm in study.others]
    return Ladder(compute, tuple(climb for climb in climbs if climb))


def _flops(part: Study, arm: str) -> float | None:
    """Training FLOPs of an arm of a block, as planned."""
    each = next(a for a in part.arms if a.name == arm)
    return float(each.flops_per_step * each.steps) if each.flops_per_step and each.steps else None


def _climb(
    arm: str, parts: Mapping[str, Study], compute: Mapping[str, float], metric: str, mode: str
) -> ScalingSlope | None:
    differences: dict[int, list[float]] = {}
    for part in parts.values():
        mine, base = part.by_seed(arm, metric), part.by_seed(part.baseline.name, metric)
        for seed in mine.keys() & base.keys():
            differences.setdefault(seed, []).append(mine[seed] - base[seed])
    complete = [each for _, each in sorted(differences.items()) if len(each) == len(parts)]
    if not complete:
        return None
    x = np.log2(list(compute.values()))
    weights = (x - x.mean()) / ((x - x.mean()) ** 2).sum()
    slopes = np.array(complete) @ weights
    # Every rung has its own noise.
    noises = [
        Noise.of(
            {each.name: part.by_seed(each.name, metric) for each in part.arms if not each.same_as},
            part.baseline.name,
        ).parts({arm: float(w), part.baseline.name: -float(w)})
        for part, w in zip(parts.values(), weights, strict=True)
    ]
    rungs = None if None in noises else [each for found in noises for each in found or ()]
    slope = float(slopes.mean())
    # A seed that is complete has a value of both in every part.
    curve = [fmean(part.values(part.baseline.name, metric).values()) for part in parts.values()]
    speedups: dict[str, Speedup | None] = {}
    for name, part in parts.items():
        value, flops = fmean(part.values(arm, metric).values()), _flops(part, arm)
        speedup = needed(value, list(compute.values()), curve, mode)
        speedups[name] = (
            replace(speedup, factor=speedup.factor / flops) if speedup and flops else None
        )
    interval = error(slopes, rungs).interval(slope, LEVEL)
    return ScalingSlope(arm, slope, interval, len(slopes), speedups)


def needed(
    value: float, compute: Sequence[float], baseline: Sequence[float], mode: str
) -> Speedup | None:
    """The FLOPs with which the baseline would have the value; None unless it improves with every
    rung. compute: ascending; baseline: its value at each."""
    sign = 1.0 if mode == "max" else -1.0
    y, logs = [sign * each for each in baseline], [log(c) for c in compute]
    if any(b <= a for a, b in pairwise(y)):
        return None
    target = sign * value
    right = min(max(bisect_left(y, target), 1), len(y) - 1)
    slope = (logs[right] - logs[right - 1]) / (y[right] - y[right - 1])
    return Speedup(
        exp(logs[right - 1] + slope * (target - y[right - 1])), not y[0] <= target <= y[-1]
    )
