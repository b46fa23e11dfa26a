"""Pair the runs of an arm with the baseline's runs of the same seeds.

Runs are matched by the value of the seed, never by position: runs of a seed share the order of the
data and the initial value of every parameter that both arms have, so that their difference removes
this variation.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ablate.study.numbers import seeds_in_words

Values = Mapping[str, Mapping[int, float | None]]
# Metrics are computed in float32: a value is right to 2^-24 of itself, the difference of two to
# 2^-23 of the larger, and two differences that ought to be equal lie within 2^-22.
PRECISION = 2.0**-22


@dataclass(frozen=True)
class Pairs:
    """An arm and the baseline over the seeds for which both have a number."""

    arm: str
    seeds: tuple[int, ...]  # those of the pairs, ascending
    values: tuple[float, ...]  # the arm's, one a seed
    baseline: tuple[float, ...]  # the baseline's, one a seed
    missing: tuple[int, ...]  # seeds for which the arm has no number
    baseline_missing: tuple[int, ...]  # seeds for which the baseline has none

    @property
    def complete(self) -> bool:
        """Whether every planned run of both has a number."""
        return not self.missing and not self.baseline_missing

    def within(self, seeds: Collection[int]) -> Pairs:
        """The pairs of these seeds."""
        chosen = [n for n, seed in enumerate(self.seeds) if seed in seeds]
        return replace(
            self,
            seeds=tuple(self.seeds[n] for n in chosen),
            values=tuple(self.values[n] for n in chosen),
            baseline=tuple(self.baseline[n] for n in chosen),
        )

    @cached_property
    def grain(self) -> np.ndarray:
        """The largest difference that rounding can cause, by seed, in units of the metric."""
        return PRECISION * np.maximum(np.abs(self.values), np.abs(self.baseline))

    @cached_property
    def differences(self) -> np.ndarray:
        """Arm minus baseline by seed; 0 if within rounding, and equal if equal up to rounding."""
        differences = np.array(self.values) - np.array(self.baseline)
        differences[np.abs(differences) <= self.grain] = 0.0
        if (
            len(differences)
            and (
                np.abs(differences - differences[0]) <= np.maximum(self.grain, self.grain[0])
            ).all()
        ):
            differences[:] = differences[0]
        return differences

    def words(self) -> str:
        """Describe missing results, as "'x' has no result for seeds 3, 4"; "" if none is."""
        lacks = ((repr(self.arm), self.missing), ("the baseline", self.baseline_missing))
        return "; ".join(f"{who} has no result for {seeds_in_words(s)}" for who, s in lacks if s)


def pair(values: Values, baseline: str) -> list[Pairs]:
    """Pair every other arm with the baseline, in the given order.

    A value that is None, NaN or infinite is missing: a failed run has no number to average. Any
    seed of the arm or the baseline, with a number or without, was planned for both.
    """
    reference = numbers(values[baseline])
    pairs = []
    for arm in values:
        if arm == baseline:
            continue
        by_seed = numbers(values[arm])
        planned = sorted({*values[arm], *values[baseline]})
        common = tuple(seed for seed in planned if seed in by_seed and seed in reference)
        pairs.append(
            Pairs(
                arm=arm,
                seeds=common,
                values=tuple(by_seed[seed] for seed in common),
                baseline=tuple(reference[seed] for seed in common),
                missing=tuple(seed for seed in planned if seed not in by_seed),
                baseline_missing=tuple(seed for seed in planned if seed not in reference),
            )
        )
    return pairs


def numbers(values: Mapping[int, float | None]) -> dict[int, float]:
    """Return the finite values, by seed."""
    return {s: float(v) for s, v in values.items() if v is not None and math.isfinite(v)}
