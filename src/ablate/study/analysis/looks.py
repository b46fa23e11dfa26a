"""Tests at several numbers of seeds: a study that adds seeds until its arms and claims are decided.

The level that a hypothesis may use up to a look grows with the share of the seeds, to the power of
SPENDING (Kim and DeMets 1987, Biometrika 74). The level of each look follows from the joint
distribution of the test statistics of all looks, which are taken to be normal (Armitage, McPherson
and Rowe 1969, JRSS A 132). Holm's procedure runs within each look over the arms that are not yet
shown, as if their level had been that from the first look on (Maurer and Bretz 2013, Statistics in
Biopharmaceutical Research 5).

An arm or a claim is tested at no further look if it is decided, or if the probability that the last
look shows it is below FUTILE. The latter only prevents rejections, so the levels need not consider
it.
benchmarks/looks.py simulates error rates, power and numbers of runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Generic, TypeVar

import numpy as np
from scipy import special
from scipy.optimize import brentq

from ablate.study.analysis.stats import LEVEL

SPENDING = 3
FUTILE = 0.1
NODES = 64  # of the quadrature
DECIDED, STOPPED, UNDECIDED, OPEN = "decided", "stopped", "undecided", "open"
K = TypeVar("K")
R = TypeVar("R")


@dataclass(frozen=True)
class Look:
    """The look at which an arm or a claim was tested last. number: from 1; last: seeds of the last
    look; outcome: decided, stopped (unlikely to be shown), undecided (at the last look) or open
    (more seeds follow)."""

    number: int
    of: int
    seeds: int
    last: int
    outcome: str

    def words(self) -> str:
        stopped = "stopped at " if self.outcome == STOPPED else ""
        return f"{stopped}look {self.number} of {self.of}"


@dataclass(frozen=True)
class Tested(Generic[R]):
    """The result of a test at a look. It belongs to two families, such as differences and
    equivalences: in each, whether it is shown, and its p without Holm's correction, with the sides
    of that test; None: not tested."""

    result: R
    shown: tuple[bool, bool]
    p: tuple[tuple[float, int] | None, tuple[float, int] | None]


def look_by_look(
    planned: Mapping[K, int],
    looks: tuple[int, ...],
    test: Callable[[Sequence[K], int, Sequence[float], Sequence[float]], Sequence[Tested[R]]],
) -> dict[K, tuple[R, Look]]:
    """Test look after look, and return of each the look that decides it, or else its last.

    planned: how many of the first seeds each has. test: of some of them, with this number of seeds;
    the levels are those of `holm`, of the two families, without those shown before.
    """
    judged: dict[K, tuple[R, Look]] = {}
    family, done, testing = len(planned), [0, 0], [*planned]
    for at, count in enumerate(looks):
        testing = [each for each in testing if planned[each] >= count]
        if not testing:
            break
        steps = [
            [levels(LEVEL / n, looks)[at] for n in range(family - shown, 0, -1)][: len(testing)]
            for shown in done
        ]
        tested = test(testing, count, *steps)
        done = [before + sum(t.shown[f] for t in tested) for f, before in enumerate(done)]
        last = [levels(LEVEL / max(family - shown, 1), looks)[-1] for shown in done]
        for each, found in zip(testing, tested, strict=True):
            outcome = OPEN
            if any(found.shown):
                outcome = DECIDED
            elif count == looks[-1]:
                outcome = UNDECIDED
            elif not _promising(found, last, count / looks[-1]):
                outcome = STOPPED
            judged[each] = found.result, Look(at + 1, len(looks), count, looks[-1], outcome)
        testing = [each for each in testing if judged[each][1].outcome == OPEN]
    return judged


def _promising(tested: Tested[R], last: Sequence[float], share: float) -> bool:
    """Whether more seeds may show it. last: the levels of the last look; share: of the seeds."""
    return any(
        each is not None and chance(each[0] / each[1], level / each[1], share) >= FUTILE
        for each, level in zip(tested.p, last, strict=True)
    )


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
        found.append(float(2 * special.ndtr(-bound / np.sqrt(at))))
        normal = np.exp(-(((bound * nodes - points[:, None]) / step) ** 2) / 2) / np.sqrt(2 * np.pi)
        moved = density @ normal / step
        points, density, before = bound * nodes, moved * weights * bound, at
    return tuple(found)


def _beyond(
    bound: float, points: np.ndarray, density: np.ndarray, step: float, spend: float
) -> float:
    """The probability that the next statistic is beyond +-bound, minus `spend`."""
    sides = special.ndtr((points - bound) / step) + special.ndtr((-points - bound) / step)
    return float(density @ sides - spend)


def chance(p: float, level: float, share: float) -> float:
    """The predicted probability that a one-sided p is at most level at the last look; share: of the
    seeds that there are."""
    z, needed = -special.ndtri(p), -special.ndtri(level)
    return float(special.ndtr((z - needed * np.sqrt(share)) / np.sqrt(1 - share)))
