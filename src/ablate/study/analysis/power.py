"""The effect that a study can show, in standard deviations of the noise of a run within its seed.

Simulated with the test of `noise` on normal noise. The errors do not depend on the effects, so of
each simulated study the effect from which on its arm is shown is known in closed form. The arm is
tested at LEVEL / arms, the strictest level of Holm's correction.
"""

from __future__ import annotations

from bisect import bisect_left
from functools import cache
from math import inf

import numpy as np
from scipy import special

from ablate.study.analysis.noise import ARM, FEWEST, FEWEST_KNOWN, level_of_baseline, two_sided
from ablate.study.analysis.stats import LEVEL

POWER = 0.8
STUDIES = 4_000
MOST = 200  # more seeds than this are never suggested


@cache
def smallest_effect(arms: int, seeds: int, known_df: float = 0, power: float = POWER) -> float:
    """The effect of one of `arms` arms that is shown with this power. known_df: degrees of freedom
    of a known noise, which is pooled with that of two seeds."""
    simulated = min(seeds, MOST)  # from there on the noise is as good as known
    used = known_df if seeds < FEWEST else 0
    quantile = np.quantile(_shown_from(arms, simulated, used), power)
    return float(quantile * np.sqrt(simulated / seeds))


def seeds_for(effect: float, arms: int, known_df: float = 0) -> int | None:
    """The fewest seeds with which an effect of one of `arms` arms is shown with POWER; None for
    more than MOST."""
    if known_df and smallest_effect(arms, FEWEST_KNOWN, known_df) <= abs(effect):
        return FEWEST_KNOWN
    count = bisect_left(
        range(MOST + 1), -abs(effect), lo=FEWEST, key=lambda n: -smallest_effect(arms, n)
    )
    return count if count <= MOST else None


def _shown_from(arms: int, seeds: int, known_df: float) -> np.ndarray:
    """By simulated study the effect from which on its first arm is shown.

    Of the residuals, which are normal, only two contrasts between the arms matter by themselves:
    the difference of the arm and the baseline, and their sum minus all others.
    """
    rng = np.random.default_rng(0)
    count, df = arms + 1, seeds - 1
    difference, total = rng.normal(size=(2, STUDIES, df))
    share = (1 - 2 / count) / np.sqrt(2 - 4 / count) if arms > 1 else 0.0
    rest_df = (arms - 1) * df
    squares = of_difference = (difference**2).sum(1)
    if arms > 1:
        squares = squares + (total**2).sum(1)
    if arms > 2:
        squares = squares + rng.chisquare((arms - 2) * df, STUDIES)
    of_baseline, of_arm = (
        ((sign * difference / np.sqrt(2) + share * total) ** 2).sum(1) / (1 - 1 / count)
        for sign in (-1, 1)
    )
    own = 2 * of_difference / df

    def fitted(known: np.ndarray, known_df: float) -> tuple[np.ndarray, ...]:
        """The difference from which on the arm is shown, the variance of a run and its df."""
        pooled_df = np.full(STUDIES, arms * df + known_df)
        pooled = (squares + known) / pooled_df
        error, error_df = np.maximum(2 * pooled, own), pooled_df
        if others_df := rest_df + known_df:
            alike = (squares - of_baseline + known) / others_df
            first = of_baseline / df
            noisy = special.fdtrc(df, others_df, first / alike) <= level_of_baseline(seeds)
            sum_df = (alike + first) ** 2 / (alike**2 / others_df + first**2 / df)
            pooled, pooled_df = np.where(
                noisy, [alike, np.full(STUDIES, others_df)], [pooled, pooled_df]
            )
            error = np.where(noisy, np.maximum(alike + first, own), error)
            error_df = np.where(noisy, sum_df, error_df)
            without = (squares - of_arm + known) / others_df
            alone = special.fdtrc(df, others_df, of_arm / df / without) <= ARM
            error, error_df = np.where(alone, own, error), np.where(alone, df, error_df)
        shown = np.sqrt(error / seeds) * -special.stdtrit(error_df, LEVEL / arms / 2)
        return shown, pooled, pooled_df

    shown, found, found_df = fitted(np.zeros(STUDIES), 0)
    if known_df:
        known = rng.chisquare(known_df, STUDIES)
        p = two_sided(found / (known / known_df), found_df, known_df)
        shown = np.where(p > LEVEL, fitted(known, known_df)[0], inf)
    return shown - rng.normal(scale=np.sqrt(2 / seeds), size=STUDIES)
