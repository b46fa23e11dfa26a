"""The noise of a study on one metric, and the error of a contrast between its arms.

A study is a randomized-block layout: value = arm + seed + residual. Runs of a seed share their
data order and initial values, which the seed's term removes; the residual is the noise of a
difference. Its variance is estimated from every arm with (arms - 1)(seeds - 1) degrees of freedom,
so that three seeds of several arms suffice for a verdict (Cochran and Cox 1957, Experimental
Designs, section 4.2).

Pooling is wrong if arms differ in noise, and is guarded in several ways:

- If the baseline's share of the residual sum of squares is too large for equal noise (F test at
  BASELINE), it has its own variance and the other arms are pooled without it, with the degrees of
  freedom of Satterthwaite 1946, Biometrics Bulletin 2.
- If another arm's share is too large (F test at ARM), its contrasts have only their own spread.
- If an arm is so much noisier, as one that diverged, that this test would find another as noisy
  with a probability of 1 - ARM, the variance of the others is estimated without it. Such arms are
  found one by one, the noisiest first. The pool without an arm that is less noisy would be too
  small for another noisy one that the test misses.
- The error of a contrast is never smaller than that from the spread of its values over the seeds.
- A known noise is used only with two seeds, and if the study's own does not differ from it (F test
  at LEVEL): more seeds find unequal noise better without it.
- A contrast from which the seed's term does not cancel has only its own spread.

All of this is decided by residuals, which are independent of the estimated effects.
benchmarks/verdicts.py simulates the error rates and the power.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf
from typing import Any

import numpy as np
from scipy import special

from ablate.study.analysis.pairs import PRECISION, Values, numbers
from ablate.study.analysis.stats import LEVEL, Interval

BASELINE = 0.2
BASELINE_OF_TWO = 0.1  # with two seeds its own variance has one degree of freedom: little power
ARM = 0.03
FEWEST = 3  # seeds of a verdict
FEWEST_KNOWN = 2  # with a known noise, which more seeds do without
EVEN = 1e-9  # weights of a contrast that sum to less cancel


@dataclass(frozen=True)
class Part:
    """A variance and its degrees of freedom."""

    variance: float
    df: float


@dataclass(frozen=True)
class Ratio:
    """The variance of an arm over that of others, and the degrees of freedom of both."""

    value: float
    df: float
    others_df: float

    @property
    def p(self) -> float:
        """Of a one-sided F test."""
        return float(special.fdtrc(self.df, self.others_df, self.value))

    @property
    def far(self) -> bool:
        return self.value >= far(self.df, self.others_df)


@dataclass(frozen=True)
class Error:
    """The standard error of a contrast's mean over n seeds, in units of the metric."""

    se: float
    df: float
    n: int

    def p(self, mean: float) -> float:
        """Two-sided p of a t test that the mean is zero.

        Without any noise p is 1 for zero, and else 4^(1 - n): two runs of one distribution differ
        by exactly c with probability at most 1/4 (Motzkin and Straus 1965, on the graph that joins
        values with the difference c, which has no triangle; a coin attains it), so n pairs share
        some c with probability at most 4^(1 - n).
        """
        if self.se == 0:
            return float(4.0 ** (1 - self.n)) if mean else 1.0
        return float(2 * special.stdtr(self.df, -abs(mean) / self.se))

    def equivalent_p(self, mean: float, margin: float) -> float:
        """p of two one-sided t tests that the mean lies within +-margin (Schuirmann 1987); without
        any noise as `p`."""
        if self.se == 0:
            return float(4.0 ** (1 - self.n)) if abs(mean) < margin else 1.0
        return float(special.stdtr(self.df, (abs(mean) - margin) / self.se))

    def interval(self, mean: float, level: float) -> Interval | None:
        """The bounds that a two-sided test at this level does not reject; None without noise."""
        if self.se == 0:
            return None
        half = -float(special.stdtrit(self.df, level / 2)) * self.se
        return Interval(mean - half, mean + half)


@dataclass(frozen=True)
class Noise:
    """Fitted to the values of a study. assumed: a variance from earlier studies of the same recipe,
    which is pooled with that of two seeds unless they differ."""

    values: Mapping[str, Mapping[int, float]]
    baseline: str
    assumed: Part = field(default=Part(0.0, 0))

    @classmethod
    def of(cls, values: Values, baseline: str, known: Part | None = None) -> Noise:
        """values: arm -> seed -> number; a value that is None or not finite is left out."""
        finite = {arm: found for arm, own in values.items() if (found := numbers(own))}
        return cls(finite, baseline, known or Part(0.0, 0))

    def within(self, seeds: Collection[int]) -> Noise:
        """The noise of the runs with these seeds."""
        return Noise.of(
            {arm: {s: own[s] for s in seeds if s in own} for arm, own in self.values.items()},
            self.baseline,
            self.assumed,
        )

    @cached_property
    def found(self) -> Part:
        """The variance of a run within its seed that this study shows."""
        return replace(self, assumed=Part(0.0, 0)).pooled

    @cached_property
    def agreement(self) -> float:
        """p of a two-sided F test that the variance found is the one assumed; 1 without either."""
        if not (self.assumed.df and self.found.df):
            return 1.0
        ratio = self.found.variance / self.assumed.variance
        return float(two_sided(ratio, self.found.df, self.assumed.df))

    @cached_property
    def known(self) -> Part:
        """The variance assumed, of a study with two seeds that does not differ from it."""
        few = self.seeds < FEWEST
        return self.assumed if few and self.agreement > LEVEL else Part(0.0, 0)

    @property
    def fewest(self) -> int:
        """The seeds that a verdict needs."""
        return FEWEST_KNOWN if self.known.df else FEWEST

    @cached_property
    def seeds(self) -> int:
        return len({seed for own in self.values.values() for seed in own})

    @cached_property
    def usual(self) -> Part:
        """The variance found, for other studies: of every arm but those far noisier than others."""
        alone = replace(self, assumed=Part(0.0, 0))
        return self._residual(arm for arm in self.values if arm not in alone.far)

    @cached_property
    def noisy(self) -> dict[str, float]:
        """The arms with more noise than the others: the ratio of their variances."""
        levels = dict.fromkeys(self.values, ARM) | {self.baseline: level_of_baseline(self.seeds)}
        return {arm: ratio.value for arm, ratio in self._ratios.items() if ratio.p <= levels[arm]}

    @cached_property
    def far(self) -> frozenset[str]:
        """The arms far noisier than the others, such as one that diverged."""
        return frozenset(arm for arm, ratio in self._ratios.items() if ratio.far)

    @cached_property
    def _ratios(self) -> dict[str, Ratio]:
        """Of each arm to the others that are not far noisier."""
        out: dict[str, Ratio] = {}
        while True:
            arms = [arm for arm in self.values if arm not in out]
            total, ratios = self._residual(arms), {}
            for arm in arms:
                rest = self._residual(other for other in arms if other != arm)
                own, others = _beyond(total, rest), together(rest, self.known)
                if own.df and others.df and own.variance:
                    value = own.variance / others.variance if others.variance else inf
                    ratios[arm] = Ratio(value, own.df, others.df)
            noisier = [arm for arm, ratio in ratios.items() if ratio.far]
            if not noisier:
                return ratios | out
            noisiest = min(noisier, key=lambda arm: (ratios[arm].p, -ratios[arm].value))
            out[noisiest] = ratios[noisiest]

    @cached_property
    def _alike(self) -> list[str]:
        """The arms without a noisy baseline and those far noisier."""
        out = self.far | ({self.baseline} & self.noisy.keys())
        return [arm for arm in self.values if arm not in out]

    @cached_property
    def pooled(self) -> Part:
        """The variance of a run within its seed, without that of a noisy baseline and of arms far
        noisier than the others."""
        return together(self._residual(self._alike), self.known)

    @cached_property
    def of_baseline(self) -> Part:
        if self.baseline not in self.noisy:
            return self.pooled
        total = self._residual([self.baseline, *self._alike])
        return _beyond(total, self._residual(self._alike))

    def parts(self, weights: Mapping[str, float]) -> tuple[Part, ...] | None:
        """The variance of a weighted sum of arms within a seed. None if the seed's term does not
        cancel, or an arm is noisy or has too few values."""
        if abs(sum(weights.values())) > EVEN * max(map(abs, weights.values()), default=1.0):
            return None
        if any(arm in self.noisy and arm != self.baseline for arm in weights):
            return None
        squares = {arm: w**2 for arm, w in weights.items()}
        first = squares.pop(self.baseline, 0.0)
        parts = [Part(sum(squares.values()) * self.pooled.variance, self.pooled.df)]
        if self.baseline in self.noisy:
            parts.append(Part(first * self.of_baseline.variance, self.of_baseline.df))
        else:
            parts = [Part(parts[0].variance + first * self.pooled.variance, self.pooled.df)]
        return tuple(parts) if all(part.df for part in parts) else None

    def _residual(self, arms: Iterable[str]) -> Part:
        """The residual variance of the layout of some arms, by least squares; runs may be missing.

        The arms' terms are eliminated by centering, which leaves equations for the seeds' terms.
        """
        chosen = [self.values[arm] for arm in arms]
        seeds = sorted({seed for own in chosen for seed in own})
        if not seeds:
            return Part(0.0, 0)
        y = np.array([[own.get(seed, np.nan) for seed in seeds] for own in chosen])
        there = np.isfinite(y)
        counts = there.sum(axis=1, keepdims=True)
        centered = np.where(there, y - np.nanmean(y, axis=1, keepdims=True), 0.0)
        equations = np.diag(there.sum(axis=0)) - there.T @ (there / counts)
        right = centered.sum(axis=0)
        of_seeds, _, rank, _ = np.linalg.lstsq(equations, right, rcond=EVEN)
        df = int(counts.sum() - len(chosen) - rank)
        squares = float((centered**2).sum() - right @ of_seeds)
        rounding = (PRECISION * float(np.abs(y[there]).max())) ** 2 * max(df, 1)
        return Part(squares / df, df) if df and squares > rounding else Part(0.0, df)


def far(df: Any, others_df: Any) -> Any:
    """The least ratio of the variance of an arm far noisier than others."""
    return special.fdtri(df, others_df, 1 - ARM) / special.fdtri(df, others_df, ARM)


def level_of_baseline(seeds: int) -> float:
    return BASELINE if seeds > 2 else BASELINE_OF_TWO


def two_sided(ratio: Any, df: Any, other_df: Any) -> Any:
    """p of a two-sided F test of a ratio of variances."""
    sides = (test(df, other_df, ratio) for test in (special.fdtrc, special.fdtr))
    return np.minimum(1.0, 2 * np.minimum(*sides))


def together(a: Part, b: Part) -> Part:
    """The variance from two estimates of one variance."""
    df = a.df + b.df
    return Part((a.variance * a.df + b.variance * b.df) / df, df) if df else a


def _beyond(total: Part, rest: Part) -> Part:
    """The variance of the part of a larger layout that a smaller one lacks."""
    df = total.df - rest.df
    squares = total.variance * total.df - rest.variance * rest.df
    return Part(max(squares, 0.0) / df if df else 0.0, df)


def error(differences: np.ndarray, parts: Sequence[Part] | None) -> Error:
    """The error of the mean of a contrast over its seeds. differences: its values; parts: of its
    variance within a seed, as of Noise.parts; None: only its own spread is known."""
    n = len(differences)
    own = float(np.var(differences, ddof=1)) if n > 1 and np.ptp(differences) else 0.0
    variance = sum(part.variance for part in parts or ())
    if not variance:
        return Error(float(np.sqrt(own / n)), n - 1, n)
    assert parts is not None
    df = variance**2 / sum(part.variance**2 / part.df for part in parts)
    return Error(float(np.sqrt(max(variance, own) / n)), df, n)
