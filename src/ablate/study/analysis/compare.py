"""Compare arms with the baseline on one metric: tests, Holm's correction, and verdicts.

The test behind a verdict depends on the number of seeds and of arms, not on any value:

- the sign-flip test (exact up to `stats.EXACT` pairs), if its smallest p survives Holm. It assumes
  no distribution.
- otherwise the paired t test, from three seeds on. With five seeds, which is what most people can
  afford, the sign-flip p is 0.0625 at best, so that no effect could ever be shown. The t test
  assumes normal differences, which the warning says. Heavy tails make it conservative; tails as
  light as those of differences between equal runs hardly raise its false positive rate (worst case
  found, uniform noise and three seeds: 5.3 % at a level of 5 %). If the signs of the differences
  disagree, the larger of the t and the sign-flip p counts, which is never too small.
- none, with one or two seeds: two coins agree too often.

Holm (1979) holds for any mixture of tests and any dependence, such as that of a shared baseline.
Equivalence is a separate claim, so Holm is applied to its p values separately.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ablate.errors import UserError
from ablate.study.analysis import stats
from ablate.study.analysis.pairs import Pairs, Values, numbers, pair
from ablate.study.analysis.stats import LEVEL
from ablate.study.analysis.verdict import BETTER, EQUIVALENT, FEW, NONE, WORSE, Verdict, caution

FEWEST = 3  # pairs for any verdict


@dataclass(frozen=True)
class Summary:
    """Mean and standard deviation of an arm over its seeds with a number; None if too few."""

    n: int
    mean: float | None
    sd: float | None  # with n - 1


@dataclass(frozen=True)
class Tests:
    """All p values of one arm, two-sided; those named holm are adjusted over the metric's arms."""

    flip: stats.SignFlip
    t_p: float | None
    p: float  # what the verdict rests on
    rests_on: str  # "sign-flip", "t" or "nothing"
    p_holm: float
    equivalent_p_holm: float | None  # None without a margin
    differs: bool  # from the baseline, at the level
    equivalent: bool  # within the margin, at the level; both may hold


@dataclass(frozen=True)
class Comparison:
    """One arm against the baseline, over the seeds that both have."""

    pairs: Pairs
    difference: float  # mean of arm minus baseline, in units of the metric
    t_interval: stats.Interval | None
    bootstrap: stats.Interval | None
    effect: float | None  # Hedges' d_z; its sign is the difference's
    tests: Tests
    verdict: Verdict
    caution: str  # what to know about the verdict's test; "" where it needs no assumption

    @property
    def arm(self) -> str:
        return self.pairs.arm

    @property
    def n(self) -> int:
        return len(self.pairs.seeds)


@dataclass(frozen=True)
class Comparisons:
    """All arms of a study on one metric."""

    summaries: dict[str, Summary]  # of every arm, the baseline included
    arms: tuple[Comparison, ...]
    warnings: tuple[str, ...]

    def of(self, arm: str) -> Comparison | None:
        """None for the baseline and for an arm that was not compared."""
        return next((each for each in self.arms if each.arm == arm), None)


def compare(
    values: Values,
    *,
    baseline: str,
    mode: str,
    margin: float | None = None,
    allow_missing: bool = False,
) -> Comparisons:
    """Compare every arm with the baseline. values: arm -> seed -> number, None if a run has none.

    mode is "min" or "max", whichever is better. An arm that lacks a seed of the baseline's, or has
    one more, is compared only with allow_missing, over the seeds that both have; it may lack those
    that it failed on.
    """
    assert mode in ("min", "max")
    if margin is not None and not margin > 0:
        raise UserError(f"study.margin={margin}: must be above 0, in units of the metric")
    paired = pair(values, baseline)
    chosen = [each for each in paired if each.seeds and (each.complete or allow_missing)]
    tested = decide(chosen, margin=margin)
    arms = tuple(
        _comparison(each, tests, mode, margin, len(chosen))
        for each, tests in zip(chosen, tested, strict=True)
    )
    warnings = [each.words() for each in chosen] + [each.caution for each in arms]
    return Comparisons(
        summaries={
            arm: summary(list(numbers(by_seed).values())) for arm, by_seed in values.items()
        },
        arms=arms,
        warnings=tuple(dict.fromkeys(filter(None, warnings))),
    )


def decide(paired: Sequence[Pairs], *, margin: float | None = None) -> list[Tests]:
    """Test all arms on one metric; they are one family."""
    if not paired:
        return []
    flips = [stats.sign_flip(each.differences, each.grain) for each in paired]
    ts = [stats.t_p(each.differences) for each in paired]
    counts = [len(each.seeds) for each in paired]
    tests = [
        decisive(flip, t, n, len(paired)) for flip, t, n in zip(flips, ts, counts, strict=True)
    ]
    p_holm = holm([p for p, _ in tests])
    equal: list[float | None] = [None] * len(paired)
    if margin is not None:
        each_p = [stats.equivalent_p(each.differences, margin) for each in paired]
        equal = [*holm([1.0 if p is None else p for p in each_p])]
    return [
        Tests(
            flip=flips[i],
            t_p=ts[i],
            p=tests[i][0],
            rests_on=tests[i][1],
            p_holm=p_holm[i],
            equivalent_p_holm=equal[i],
            differs=tests[i][1] != "nothing" and p_holm[i] <= LEVEL,
            equivalent=n >= FEWEST and (p := equal[i]) is not None and p <= LEVEL,
        )
        for i, n in enumerate(counts)
    ]


def decisive(flip: stats.SignFlip, t: float | None, n: int, family: int) -> tuple[float, str]:
    """Return the p that the verdict rests on, and the name of its test."""
    if family * flip.smallest <= LEVEL:
        return flip.p, "sign-flip"
    if t is None or n < FEWEST:
        return flip.p, "nothing"
    return (t if flip.p <= flip.smallest else max(t, flip.p)), "t"


def holm(ps: Sequence[float]) -> list[float]:
    """Adjust p values over their family (Holm 1979).

    Same as statsmodels' multipletests, which collects garbage at every call: a third of a second.
    """
    order = np.argsort(ps)
    steps = np.array(ps)[order] * np.arange(len(ps), 0, -1)
    adjusted = np.empty(len(ps))
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(steps))
    return [float(p) for p in adjusted]


def summary(values: Sequence[float]) -> Summary:
    n = len(values)
    mean = float(np.mean(values)) if n else None
    return Summary(n, mean, float(np.std(values, ddof=1)) if n > 1 else None)


def _comparison(
    paired: Pairs, tests: Tests, mode: str, margin: float | None, family: int
) -> Comparison:
    differences = paired.differences
    difference = float(differences.mean())
    interval = stats.t_interval(differences)
    loss = difference if mode == "min" else -difference
    kind = FEW if len(differences) < FEWEST else _kind(tests, loss)
    verdict = Verdict(
        kind=kind,
        loss=loss,
        interval=None if interval is None else _oriented(interval, mode),
        n=len(differences),
        planned=len({*paired.seeds, *paired.missing, *paired.baseline_missing}),
        p=tests.equivalent_p_holm if kind == EQUIVALENT else tests.p_holm,
        family=family,
        margin=margin,
        seeds_needed=stats.seeds_needed(differences, family) if kind == NONE else None,
    )
    return Comparison(
        pairs=paired,
        difference=difference,
        t_interval=interval,
        bootstrap=stats.bootstrap_interval(differences),
        effect=stats.effect_size(differences),
        tests=tests,
        verdict=verdict,
        caution=caution(tests.rests_on, len(differences), family),
    )


def _kind(tests: Tests, loss: float) -> str:
    """Choose the verdict. Equivalence comes first: a margin says what difference would matter."""
    if tests.equivalent:
        return EQUIVALENT
    if not tests.differs:
        return NONE
    return WORSE if loss > 0 else BETTER


def _oriented(interval: stats.Interval, mode: str) -> stats.Interval:
    """Turn an interval of the difference into one of the loss, of which positive is worse."""
    return interval if mode == "min" else stats.Interval(-interval.high, -interval.low)
