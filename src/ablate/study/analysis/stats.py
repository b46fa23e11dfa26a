"""Levels, intervals and corrections that every test of a study shares."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special

LEVEL = 0.05  # of every test, over its family; the confidence of intervals is 1 - LEVEL


@dataclass(frozen=True)
class Interval:
    """Bounds of a mean difference, in units of the metric."""

    low: float
    high: float

    @property
    def half(self) -> float:
        """Half its width."""
        return (self.high - self.low) / 2


def t_interval(values: np.ndarray) -> Interval | None:
    """t interval of the mean of independent values; None without variance, as for one value."""
    if len(values) < 2 or np.ptp(values) == 0:
        return None
    half = -special.stdtrit(len(values) - 1, LEVEL / 2) * values.std(ddof=1) / np.sqrt(len(values))
    return Interval(float(values.mean() - half), float(values.mean() + half))


def crossed_interval(differences: np.ndarray) -> Interval | None:
    """Interval of the mean of paired differences d[seed, item] for other seeds and other items:
    mean +- t sqrt(v), v = (MS_seed + MS_item - MS_rest) / (seeds * items) with the mean squares of
    a two-way table without repetition, and Satterthwaite's degrees of freedom of v. None with one
    seed or one item, or without variance.

    If MS_rest is above one of the others, only by chance, v has only the larger one.
    Satterthwaite 1946, https://doi.org/10.2307/3002019; paired differences of items: Miller 2024,
    https://arxiv.org/abs/2411.00640.
    """
    seeds, items = differences.shape
    if min(seeds, items) < 2 or np.ptp(differences) == 0:
        return None
    mean, of_seed, of_item = differences.mean(), differences.mean(1), differences.mean(0)
    rest = differences - of_seed[:, None] - of_item + mean
    freedom = np.array([seeds - 1, items - 1, (seeds - 1) * (items - 1)])
    squares = np.array([items * of_seed.var() * seeds, seeds * of_item.var() * items,
                        (rest**2).sum()]) / freedom  # fmt: skip
    signed = squares * [1, 1, -1]
    if signed.sum() < squares[:2].max():  # one of the variance components is estimated as 0
        signed = np.where(np.arange(3) == squares[:2].argmax(), squares, 0)
    df = signed.sum() ** 2 / (signed**2 / freedom).sum()
    half = -special.stdtrit(df, LEVEL / 2) * np.sqrt(signed.sum() / differences.size)
    return Interval(float(mean - half), float(mean + half))


def holm(ps: Sequence[float], levels: Sequence[float] | None = None) -> list[float]:
    """Adjust p values over their family (Holm 1979), so that LEVEL is the level of each.

    levels: of the smallest p, the second, and so on, without others LEVEL / family, and so on. Same
    as statsmodels' multipletests, which collects garbage at every call: a third of a second.
    """
    order = np.argsort(ps)
    steps = np.array(ps)[order] * (LEVEL / np.array(levels or of_holm(len(ps))))
    adjusted = np.empty(len(ps))
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(steps))
    return [float(p) for p in adjusted]


def of_holm(family: int) -> list[float]:
    """The levels of the smallest p of a family, the second, and so on."""
    return [LEVEL / count for count in range(family, 0, -1)]


def holm_levels(ps: Sequence[float], levels: Sequence[float] | None = None) -> list[float]:
    """The level at which Holm's procedure tests each p of the family; after the first that is not
    significant, the level of that one. An interval at this level leaves out zero if and only if its
    adjusted p is at most LEVEL. levels: as of `holm`."""
    order = np.argsort(ps)
    steps = np.array(levels or of_holm(len(ps)))
    missed = np.flatnonzero(np.array(ps)[order] > steps)
    if len(missed):
        steps[missed[0] :] = steps[missed[0]]
    chosen = np.empty(len(ps))
    chosen[order] = steps
    return [float(level) for level in chosen]
