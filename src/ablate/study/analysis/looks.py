"""Tests at several numbers of seeds: a study that adds seeds until its arms are decided.

The level that a hypothesis may use up to a look grows with the share of the seeds, to the power of
SPENDING (Kim and DeMets 1987, Biometrika 74). The level of each look follows from the joint
distribution of the test statistics of all looks, which are taken to be normal (Armitage, McPherson
and Rowe 1969, JRSS A 132). Holm's procedure runs within each look over the arms that are not yet
shown, as if their level had been that from the first look on (Maurer and Bretz 2013, Statistics in
Biopharmaceutical Research 5).

An arm gets no more seeds if it is decided, or if the probability that the last look shows it is
below FUTILE. The latter only prevents rejections, so the levels need not consider it.
benchmarks/looks.py simulates error rates, power and numbers of runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from scipy import stats
from scipy.optimize import brentq

SPENDING = 3
FUTILE = 0.1
NODES = 64  # of the quadrature
DECIDED, STOPPED, UNDECIDED, OPEN = "decided", "stopped", "undecided", "open"


@dataclass(frozen=True)
class Look:
    """The look at which an arm was tested last. number: from 1; last: seeds of the last look;
    outcome: decided, stopped (a difference is unlikely to be shown), undecided (at the last look)
    or open (more seeds follow)."""

    number: int
    of: int
    seeds: int
    last: int
    outcome: str

    def words(self) -> str:
        stopped = "stopped at " if self.outcome == STOPPED else ""
        return f"{stopped}look {self.number} of {self.of}"


@cache
def levels(level: float, looks: tuple[int, ...]) -> tuple[float, ...]:
    """The level of the two-sided test at each look. level: of all together; looks: numbers of
    seeds, ascending."""
    share = np.array(looks) / looks[-1]
    spent = np.diff(level * share**SPENDING, prepend=0.0)
    nodes, weights = np.polynomial.legendre.leggauss(NODES)
    # Of statistics that no look before has rejected: points, and their density times weights.
    points, density, before = np.zeros(1), np.ones(1), 0.0
    found = []
    for at, spend in zip(share, spent, strict=True):
        step = np.sqrt(at - before)
        bound = brentq(_beyond, 0, 40, (points, density, step, spend))
        found.append(float(2 * stats.norm.sf(bound / np.sqrt(at))))
        moved = density @ stats.norm.pdf((bound * nodes - points[:, None]) / step) / step
        points, density, before = bound * nodes, moved * weights * bound, at
    return tuple(found)


def _beyond(
    bound: float, points: np.ndarray, density: np.ndarray, step: float, spend: float
) -> float:
    """The probability that the next statistic is beyond +-bound, minus `spend`."""
    sides = stats.norm.sf((bound - points) / step) + stats.norm.sf((bound + points) / step)
    return float(density @ sides - spend)


def chance(p: float, level: float, share: float) -> float:
    """The predicted probability that a one-sided p is at most level at the last look; share: of the
    seeds that there are."""
    z, needed = stats.norm.isf(p), stats.norm.isf(level)
    return float(stats.norm.cdf((z - needed * np.sqrt(share)) / np.sqrt(1 - share)))
