"""Statistics of one arm's paired differences: intervals, effect size, p values, seeds needed.

The null hypothesis of every test is that the change does nothing: given all that a seed shares, the
two runs are independent draws of one distribution. Their difference is then symmetric, which is all
that the sign-flip test assumes, and peaked at zero, which keeps a t test near its level on few
pairs even if the metric is far from normal (tests/test_study_stats.py).
"""

from bisect import bisect_left
from dataclasses import dataclass
from functools import cache
from itertools import product

import numpy as np
from scipy import special, stats
from statsmodels.stats.power import TTestPower
from statsmodels.stats.weightstats import ttost_paired

LEVEL = 0.05  # of every test; intervals hold with confidence 1 - LEVEL
EXACT = 12  # up to this number of pairs, every pattern of signs is counted
FLIPS = 9_999  # patterns drawn beyond that
RESAMPLES = 9_999  # of the bootstrap
POWER = 0.8
MOST = 1_000  # more seeds than this are never suggested


@dataclass(frozen=True)
class Interval:
    """Bounds of a mean difference, in units of the metric."""

    low: float
    high: float

    @property
    def half(self) -> float:
        """Half its width."""
        return (self.high - self.low) / 2


@dataclass(frozen=True)
class SignFlip:
    """Two-sided p of the sign-flip test, and the smallest p possible with this number of pairs."""

    p: float
    smallest: float


def smallest_p(n: int) -> float:
    """The p of n differences of one sign: both patterns of one sign among 2^n, or as drawn."""
    return 2.0 ** (1 - n) if n <= EXACT else 2 / (FLIPS + 1)


def sign_flip(differences: np.ndarray, grain: np.ndarray) -> SignFlip:
    """Test how often random signs give a sum at least as far from zero (Fisher 1935).

    A pattern whose sum equals the observed one counts, even if rounding separates them: flipping
    the set F takes 2 * sum(F) off the sum, of which sum(grain of F) may be rounding. scipy's test
    finds ties by float64 equality, which metrics computed in float32 never meet.
    """
    n = len(differences)
    cost = 2 * differences * (1 if differences.sum() >= 0 else -1) - grain
    if n <= EXACT:
        one_sided = float((_flips(n) @ cost <= 0).mean())
    else:
        drawn = stats.permutation_test(
            (cost,),
            np.sum,
            permutation_type="samples",
            alternative="greater",
            n_resamples=FLIPS,
            vectorized=True,
            rng=0,
        )
        one_sided = float(drawn.pvalue)
    return SignFlip(min(1.0, 2 * one_sided), smallest_p(n))


@cache
def _flips(n: int) -> np.ndarray:
    return np.array(list(product((0.0, 1.0), repeat=n)))


def t_p(differences: np.ndarray) -> float | None:
    """Two-sided p of the paired t test; None for one pair.

    Equal differences have no variance. Zeros give 1. For another number c a t test would give 0;
    instead: two runs of one distribution differ by exactly c with probability at most 1/4 (Motzkin
    and Straus 1965, on the graph that joins values c apart, which has no triangle; a coin attains
    it), so n pairs share some c with probability at most 4^(1 - n).
    """
    n = len(differences)
    if n < 2:
        return None
    if np.ptp(differences) == 0:
        return float(4.0 ** (1 - n)) if differences[0] else 1.0
    return float(stats.ttest_1samp(differences, 0.0).pvalue)


def t_interval(differences: np.ndarray) -> Interval | None:
    """t interval of the mean; None without variance, as with one pair."""
    if len(differences) < 2 or np.ptp(differences) == 0:
        return None
    interval = stats.ttest_1samp(differences, 0.0).confidence_interval(1 - LEVEL)
    return Interval(float(interval.low), float(interval.high))


def bootstrap_interval(differences: np.ndarray) -> Interval | None:
    """Bootstrap interval of the mean, bias-corrected and accelerated (Efron 1987); deterministic.

    With few seeds it is too narrow (of five differences no resample is wider than the five), so
    verdicts never rest on it. None for fewer than three pairs, and without variance.
    """
    if len(differences) < 3 or np.ptp(differences) == 0:
        return None
    interval = stats.bootstrap(
        (differences,),
        np.mean,
        confidence_level=1 - LEVEL,
        n_resamples=RESAMPLES,
        method="BCa",
        vectorized=True,
        rng=np.random.default_rng(0),
    ).confidence_interval
    return Interval(float(interval.low), float(interval.high))


def effect_size(differences: np.ndarray) -> float | None:
    """d_z, the mean in standard deviations of the differences, corrected for few seeds.

    The factor is Hedges' (1981, equation 6e) for n - 1 degrees of freedom. None for fewer than
    three pairs, where it is 0, and without variance.
    """
    n = len(differences)
    if n < 3 or np.ptp(differences) == 0:
        return None
    m = n - 1
    factor = np.exp(special.gammaln(m / 2) - special.gammaln((m - 1) / 2)) / np.sqrt(m / 2)
    return float(factor * differences.mean() / differences.std(ddof=1))


def equivalent_p(differences: np.ndarray, margin: float) -> float | None:
    """p of two one-sided t tests that the mean lies within +-margin (Schuirmann 1987).

    Differences without variance give the limit: 0 inside the margin, 1 outside. None for one pair.
    """
    n = len(differences)
    if n < 2:
        return None
    if np.ptp(differences) == 0:
        return float(abs(differences[0]) >= margin)
    return float(ttost_paired(differences, np.zeros(n), -margin, margin)[0])


def seeds_to_reach(family: int) -> int | None:
    """The fewest seeds whose smallest sign-flip p stays within LEVEL after Holm over the family.

    None if no number of seeds does, because patterns are drawn.
    """
    enough = (n for n in range(1, EXACT + 2) if family * smallest_p(n) <= LEVEL)
    return next(enough, None)


def seeds_needed(differences: np.ndarray, family: int) -> int | None:
    """Return the seeds that would show an effect as large as the observed one, with power `POWER`.

    From the power of the t test at LEVEL / family, where Holm is strictest, and never fewer than
    the sign-flip test needs to reach LEVEL. None: more than MOST, or no effect to be shown: the
    mean lies within its standard error. The observed effect of few seeds is itself uncertain, and
    so is this number.
    """
    n = len(differences)
    error = differences.std(ddof=1) / np.sqrt(n) if n > 1 else 0.0
    if not differences.any() or abs(differences.mean()) < error:
        return None
    least = max(n + 1, seeds_to_reach(family) or 0)
    effect = effect_size(differences)
    if effect is None:
        return least

    def power(n: int) -> float:
        return float(TTestPower().power(abs(effect), n, LEVEL / family))

    count = bisect_left(range(MOST + 1), POWER, lo=2, key=power)
    return max(least, count) if count <= MOST else None
