"""The same arms at several sizes or budgets (study.blocks): slopes and effective speed-ups.

Blocks on the same data make a ladder, its rungs in the order of the baseline's training FLOPs. Of
each arm: the slope of its difference from the baseline over the logarithm of these FLOPs, by seed;
and at each rung the speed-up, how many times the arm's training FLOPs the baseline would need for
the arm's value. With four rungs or more the baseline's values are those of a scaling law, and
speed-ups have intervals (ablate.study.analysis.scaling_law). With fewer the law cannot be fitted:
the baseline's means are interpolated linearly in the logarithm of the FLOPs (as in Kaplan et al.
2020, https://arxiv.org/abs/2001.08361), without intervals. Speed-ups beyond the baseline's rungs
are marked as extrapolated. By wall clock, it is the baseline's time with that compute over the
arm's time, both from the training times that were measured at the rung.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import exp, hypot, inf, log
from statistics import fmean

import numpy as np

from ablate.study.analysis.collect import Study
from ablate.study.analysis.noise import Error, Noise, Part, error
from ablate.study.analysis.scaling_law import LEAST, Effective, Law, effective, predicted
from ablate.study.analysis.stats import LEVEL, Interval
from ablate.study.numbers import NOTHING, number, share

SECONDS = "cost/seconds"
SAME = 0.01  # relative difference of FLOPs below which two blocks are one rung


@dataclass(frozen=True)
class Speedup:
    """interval: of the factor, at 95 %; clock, clock_interval: by wall clock, if times exist."""

    factor: float
    extrapolated: bool
    interval: Interval | None = None
    clock: float | None = None
    clock_interval: Interval | None = None

    def words(self) -> str:
        return self._times(self.factor, self.interval)

    def clock_words(self) -> str:
        return NOTHING if self.clock is None else self._times(self.clock, self.clock_interval)

    def _times(self, factor: float, ends: Interval | None) -> str:
        between = "" if ends is None else f" ({ends.low:.3g} to {ends.high:.3g})"
        return f"{factor:.3g} times{'*' * self.extrapolated}{between}"


@dataclass(frozen=True)
class ScalingSlope:
    """An arm on the ladder. slope: of its difference, in units of the metric per doubling of the
    baseline's FLOPs; speedups: by block, None if the baseline does not improve with compute, or
    the arm's FLOPs are not known; flops, means: of its training, and of its values, by block;
    samples: of the bootstrap, of the speed-ups by block and, "", of their growth, if it has a law;
    growth: how the logarithm to base 2 of the speed-up changes per doubling of the baseline's
    FLOPs, with its interval: None without a scaling law."""

    arm: str
    slope: float
    interval: Interval | None
    n: int
    speedups: Mapping[str, Speedup | None]
    flops: Mapping[str, float]
    means: Mapping[str, float]
    samples: Mapping[str, np.ndarray]
    growth: float | None = None
    growth_interval: Interval | None = None

    def trend(self) -> str:
        """Whether the speed-up grows with the size; "" without a scaling law."""
        if self.growth is None or (ends := self.growth_interval) is None:
            return ""
        word = "grows" if ends.low > 0 else "shrinks" if ends.high < 0 else "shows no trend"
        three = (ends.low, self.growth, ends.high)
        low, middle, high = (f"{inf if each > 1000 else 2**each:.3g}" for each in three)
        return f"{word}: {middle} times (95 % {low} to {high}) per doubling"


@dataclass(frozen=True)
class Ladder:
    """compute: block -> training FLOPs of the baseline, ascending; means: its values, of the blocks
    with any. misfit: the largest difference of its means from its scaling law, None without one.
    predicted: its value at the last rung by the scaling law of the others; None with
    fewer than five rungs."""

    compute: Mapping[str, float]
    means: Mapping[str, float]
    climbs: tuple[ScalingSlope, ...]
    predicted: float | None
    misfit: float | None

    @property
    def speedups(self) -> list[Speedup]:
        return [each for climb in self.climbs for each in climb.speedups.values() if each]

    def basis(self, digits: int) -> str:
        """How speed-ups were found, and the prediction of the law. digits: of the metric."""
        words, last = "", [*self.compute][-1]
        if len(self.compute) < LEAST:
            words = (
                f"With fewer than {LEAST} sizes a scaling law, and with it intervals and the trend"
                " of speed-ups, cannot be fitted: the baseline is interpolated between them."
            )
        elif any(each.interval for each in self.speedups):
            words = (
                "From the scaling law of the baseline, with 95 % intervals; its means are within"
                f" {number(self.misfit, digits)} of the law."
            )
        elif self.climbs:
            words = (
                "No scaling law was fitted, which needs two seeds of every run and a loss that"
                " falls: the baseline is interpolated between the sizes."
            )
        if self.predicted is None:
            return words
        value = self.means.get(last)
        outcome = "which has not run."
        if value is not None:
            off = share(value / self.predicted - 1)
            outcome = f"whose mean is {number(value, digits)} ({off})."
        predicts = f"The law of the smaller sizes predicts {number(self.predicted, digits)}"
        return f"{words} {predicts} for the baseline at {last}, {outcome}".strip()


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
    sign = -1.0 if mode == "max" else 1.0
    values = {name: part.values(part.baseline.name, metric) for name, part in parts.items()}
    means = {name: fmean(of.values()) for name, of in values.items() if of}
    law = None
    if [*means][: len(rungs) - 1] == [*compute][:-1]:  # the last may not have run
        law = predicted(rungs, [sign * mean for mean in means.values()])
    misfit = None
    if len(means) == len(rungs) >= LEAST:
        x, y = np.array(rungs), sign * np.array([*means.values()])
        misfit = float(np.abs(Law.fitted(x, y[None]).losses(x)[0] - y).max())
    return Ladder(
        compute,
        means,
        tuple(climb for climb in climbs if climb),
        None if law is None else sign * law,
        misfit,
    )


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
    by_rung = np.array(complete)
    slopes = by_rung @ weights
    # Every rung has its own noise.
    noises = [
        Noise.of(
            {each.name: part.by_seed(each.name, metric) for each in part.arms if not each.same_as},
            part.baseline.name,
        ).parts({arm: 1.0, part.baseline.name: -1.0})
        for part in parts.values()
    ]
    if None in noises:  # an arm that is noisy at a size may be so at others, not found there
        noises = [None] * len(parts)
    weighted = [
        Part(w**2 * part.variance, part.df)
        for w, found in zip(weights, noises, strict=True)
        for part in found or ()
    ]
    slope = float(slopes.mean())
    interval = error(slopes, weighted or None).interval(slope, LEVEL)
    errors = [_error(own, parts) for own, parts in zip(by_rung.T, noises, strict=True)]
    speedups, law = _speedups(arm, parts, compute, metric, mode, by_rung.mean(0), errors)
    flops = {name: of for name, part in parts.items() if (of := _flops(part, arm))}
    means = {name: fmean(part.values(arm, metric).values()) for name, part in parts.items()}
    samples = {
        name: law.samples[:, n] * compute[name] / flops[name]
        for n, name in enumerate(parts)
        if law is not None and name in flops
    }
    growth: float | None = None
    reach: Interval | None = None
    if law is not None and len(flops) == len(parts):
        # Of the arm's own compute, whose ratio to the baseline's may change with size.
        more = float(np.log2([compute[name] / flops[name] for name in parts]) @ weights)
        growth = None if law.growth is None else law.growth + more
        reach = Interval(law.growth_interval.low + more, law.growth_interval.high + more)
        samples[""] = law.growths + more
    return ScalingSlope(
        arm, slope, interval, len(slopes), speedups, flops, means, samples, growth, reach
    )


def _error(differences: np.ndarray, parts: Sequence[Part] | None) -> Error:
    """The error of a mean difference by the noise of its rung. The spread of the differences, which
    guards verdicts, is not needed: it would make intervals too long."""
    if parts is not None:
        differences = np.full(len(differences), differences.mean())
    return error(differences, parts)


def _speedups(
    arm: str,
    parts: Mapping[str, Study],
    compute: Mapping[str, float],
    metric: str,
    mode: str,
    differences: np.ndarray,
    errors: Sequence[Error],
) -> tuple[dict[str, Speedup | None], Effective | None]:
    """By rung, and the law that they are from. differences, errors: by rung, of the arm."""
    sign = -1.0 if mode == "max" else 1.0
    rungs = list(compute.values())
    # A seed that is complete has a value of both in every part.
    values = [[*part.values(part.baseline.name, metric).values()] for part in parts.values()]
    losses = [[sign * value for value in of_rung] for of_rung in values]
    law = effective(rungs, losses, sign * differences, errors)
    found: dict[str, Speedup | None] = {}
    for n, (name, part) in enumerate(parts.items()):
        flops = _flops(part, arm)
        if law is not None:
            needs, ends = law.multiples[n] * rungs[n], law.intervals[n]
            ratio = rungs[n] / flops if flops else 0.0
            interval = Interval(ends.low * ratio, ends.high * ratio)
            outside = not rungs[0] <= needs <= rungs[-1]
            speedup: Speedup | None = Speedup(needs, outside, interval)
        else:
            value = fmean(part.values(arm, metric).values())
            speedup = needed(value, rungs, [fmean(of_rung) for of_rung in values], mode)
        found[name] = None
        if speedup and flops:
            own = replace(speedup, factor=speedup.factor / flops)
            found[name] = _by_clock(own, part, arm, flops / rungs[n])
    return found, law


def _by_clock(speedup: Speedup, part: Study, arm: str, scale: float) -> Speedup:
    """With the speed-up by wall clock. scale: the arm's FLOPs as a multiple of the baseline's. The
    errors of the speed-up and of the times are independent, so that their squares add."""
    mine, base = (part.by_seed(name, SECONDS) for name in (arm, part.baseline.name))
    ratios = [log(scale * base[seed] / mine[seed]) for seed in sorted(mine.keys() & base.keys())]
    if not ratios:
        return speedup
    ratio, times = fmean(ratios), speedup.interval
    clock = speedup.factor * exp(ratio)
    known = times is not None and 0 < times.low <= speedup.factor <= times.high < inf
    if times is None or not known or len(ratios) < 2:
        return replace(speedup, clock=clock)
    spread = error(np.array(ratios), None).interval(0.0, LEVEL)
    half = 0.0 if spread is None else spread.high
    down = hypot(log(speedup.factor / times.low), half)
    up = hypot(log(times.high / speedup.factor), half)
    return replace(
        speedup, clock=clock, clock_interval=Interval(clock * exp(-down), clock * _exp(up))
    )


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
        _exp(logs[right - 1] + slope * (target - y[right - 1])), not y[0] <= target <= y[-1]
    )


def _exp(x: float) -> float:
    return exp(x) if x < 700 else inf
