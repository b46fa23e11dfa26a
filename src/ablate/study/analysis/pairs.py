"""Runs of an arm beside the baseline's runs of the same seeds.

Pairs are made by the value of the seed, never by position: a seed shares the order of the data and
the initial value of every parameter that two arms have in common, which is what a difference within
a seed takes away.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ablate.errors import UserError, suggest

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
        """Whether no planned run of either lacks its number."""
        return not self.missing and not self.baseline_missing

    @cached_property
    def grain(self) -> np.ndarray:
        """The largest difference, by seed and in units of the metric, that rounding can make."""
        return PRECISION * np.maximum(np.abs(self.values), np.abs(self.baseline))

    @cached_property
    def differences(self) -> np.ndarray:
        """Arm minus baseline by seed. What rounding can make is 0, and makes equal ones equal."""
        found = np.array(self.values) - np.array(self.baseline)
        found[np.abs(found) <= self.grain] = 0.0
        if len(found) and (np.abs(found - found[0]) <= np.maximum(self.grain, self.grain[0])).all():
            found[:] = found[0]
        return found

    def words(self) -> str:
        """What is missing, such as "'x' has no result for seeds 3, 4"; "" where nothing is."""
        lacks = ((repr(self.arm), self.missing), ("the baseline", self.baseline_missing))
        return "; ".join(f"{who} has no result for {_seeds(s)}" for who, s in lacks if s)


def by_arm(runs: Iterable[tuple[str, int, float | None]]) -> dict[str, dict[int, float | None]]:
    """Numbers by arm and seed from (arm, seed, value), value None for a run without a number.

    Two runs of the same arm and seed are refused: they would count as one, or as two.
    """
    values: dict[str, dict[int, float | None]] = {}
    for arm, seed, value in runs:
        if seed in values.setdefault(arm, {}):
            raise UserError(f"arm '{arm}' has two runs of seed {seed}: keep one of them")
        values[arm][seed] = value
    return values


def pair(values: Values, baseline: str) -> list[Pairs]:
    """Every other arm beside the baseline, in the order given.

    A value that is None, NaN or infinite is missing: a run that failed has no number to average.
    Any seed that the arm or the baseline names, with a number or without, was planned for both.
    """
    if baseline not in values:
        near = suggest(baseline, values)
        raise UserError(f"baseline '{baseline}' is not among the arms{near or f': {list(values)}'}")
    reference = numbers(values[baseline])
    pairs = []
    for arm in values:
        if arm == baseline:
            continue
        own = numbers(values[arm])
        planned = sorted({*values[arm], *values[baseline]})
        common = tuple(seed for seed in planned if seed in own and seed in reference)
        pairs.append(
            Pairs(
                arm=arm,
                seeds=common,
                values=tuple(own[seed] for seed in common),
                baseline=tuple(reference[seed] for seed in common),
                missing=tuple(seed for seed in planned if seed not in own),
                baseline_missing=tuple(seed for seed in planned if seed not in reference),
            )
        )
    return pairs


def numbers(values: Mapping[int, float | None]) -> dict[int, float]:
    """The seeds that have a finite value."""
    return {s: float(v) for s, v in values.items() if v is not None and math.isfinite(v)}


def _seeds(seeds: tuple[int, ...]) -> str:
    return f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"
