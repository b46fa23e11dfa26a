"""Compare arms with the baseline on one metric: errors, Holm's correction, and verdicts.

A verdict is a t test of the mean paired difference, whose error comes from the noise of the whole
study (`noise`), at one number of seeds or at several (`looks`). Holm (1979) corrects the p values
over the arms. The interval of an arm belongs to its test, at the level at which Holm tests it, so
that it excludes zero if and only if a difference is shown. Equivalence is a separate claim, so Holm
is applied to its p values separately.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile

import numpy as np

from ablate.errors import UserError
from ablate.study.analysis import power
from ablate.study.analysis.looks import Look, Tested, look_by_look
from ablate.study.analysis.noise import FEWEST, FEWEST_KNOWN, Error, Noise, Part, error
from ablate.study.analysis.pairs import Pairs, Values, numbers, pair
from ablate.study.analysis.stats import LEVEL, Interval, holm, holm_levels
from ablate.study.analysis.verdict import BETTER, EQUIVALENT, FEW, NONE, WORSE, Verdict
from ablate.study.numbers import certain, counted, probability


@dataclass(frozen=True)
class Summary:
    """Mean and standard deviation of an arm over its seeds with a number; None if too few."""

    n: int
    mean: float | None
    sd: float | None  # with n - 1


@dataclass(frozen=True)
class Tests:
    """The p values of one arm, two-sided; those named holm are adjusted over the metric's arms."""

    error: Error
    p: float
    p_holm: float
    equivalent_p: float | None  # None without a margin
    equivalent_p_holm: float | None
    differs: bool  # from the baseline, at the level
    equivalent: bool  # within the margin, at the level; both may be true
    level: float  # at which p is tested


@dataclass(frozen=True)
class Comparison:
    """One arm against the baseline, over the seeds that both have."""

    pairs: Pairs
    difference: float  # mean of arm minus baseline, in units of the metric
    interval: Interval | None  # at the level of the arm's test
    size: float | None  # the difference in standard deviations between the seeds of an arm
    tests: Tests
    verdict: Verdict
    look: Look | None = None  # None if the number of seeds is fixed

    @property
    def arm(self) -> str:
        return self.pairs.arm

    @property
    def n(self) -> int:
        return len(self.pairs.seeds)

    @property
    def p(self) -> float | None:
        """p of a difference, after Holm; None with too few seeds for a verdict."""
        return None if self.verdict.kind == FEW else self.tests.p_holm


@dataclass(frozen=True)
class Comparisons:
    """All arms of a study on one metric."""

    summaries: dict[str, Summary]  # of every arm, the baseline included
    arms: tuple[Comparison, ...]
    warnings: tuple[str, ...]
    noise: Noise | None = field(default=None)

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
    known: Part | None = None,
    looks: Sequence[int] = (),
) -> Comparisons:
    """Compare every arm with the baseline. values: arm -> seed -> number, None if a run has none.

    mode is "min" or "max", whichever is better. An arm that lacks a seed of the baseline's, or has
    one more, is compared only with allow_missing, over the seeds that both have; it may lack those
    that it failed on. known: the noise of earlier studies of the same recipe. looks: numbers of
    seeds at which arms are tested: the first of those of the baseline, in their order.
    """
    assert mode in ("min", "max")
    if margin is not None and not margin > 0:
        raise UserError(f"study.margin={margin}: must be above 0, in units of the metric")
    paired = _pairs_at_looks(values, baseline) if looks else pair(values, baseline)
    chosen = [each for each in paired if each.seeds and (each.complete or allow_missing)]
    of_chosen = {arm: values[arm] for arm in (baseline, *(each.arm for each in chosen))}
    noise = Noise.of(of_chosen, baseline, known)
    summaries = {arm: summary(list(numbers(by_seed).values())) for arm, by_seed in values.items()}
    fewest = fewest_seeds(noise)
    judged: list[tuple[Pairs, Tests, Look | None]]
    if looks:
        judged = [*at_looks(of_chosen, tuple(looks), baseline, margin).values()]
    else:
        tests = decide(chosen, noise, margin=margin, fewest=fewest)
        judged = [(*each, None) for each in zip(chosen, tests, strict=True)]
    spread = _between_seeds([*summaries.values()])
    arms = tuple(_comparison(*each, mode, margin, len(chosen), spread, noise) for each in judged)
    warnings = [each.words() for each in chosen]
    if arms:
        warnings += [*_assumed(noise), *_noisy(noise), _few(arms, fewest)]
    return Comparisons(summaries, arms, tuple(dict.fromkeys(filter(None, warnings))), noise)


def fewest_seeds(noise: Noise) -> int:
    """The seeds that a verdict needs."""
    return FEWEST_KNOWN if noise.known.df else FEWEST


def _pairs_at_looks(values: Values, baseline: str) -> list[Pairs]:
    """The pairs of all arms, each over the seeds that are planned for it and the baseline."""
    found = []
    for arm in values:
        if arm != baseline:
            both = [seed for seed in values[arm] if seed in values[baseline]]
            found += pair(
                {of: {s: values[of][s] for s in both} for of in (baseline, arm)}, baseline
            )
    return found


def at_looks(
    values: Values, looks: tuple[int, ...], baseline: str, margin: float | None
) -> dict[str, tuple[Pairs, Tests, Look]]:
    """Test the arms look after look: differences and equivalences are two families."""
    order, arms = [*values[baseline]], [arm for arm in values if arm != baseline]
    planned = {arm: len([*takewhile(values[arm].__contains__, order)]) for arm in arms}

    def test(
        testing: Sequence[str], count: int, steps: Sequence[float], equal_steps: Sequence[float]
    ) -> list[Tested[tuple[Pairs, Tests]]]:
        seeds = order[:count]
        now = {arm: {s: own[s] for s in seeds if s in own} for arm, own in values.items()}
        paired = pair({arm: now[arm] for arm in (baseline, *testing)}, baseline)
        tested = decide(
            paired, Noise.of(now, baseline), margin=margin, steps=steps, equal_steps=equal_steps
        )
        return [
            Tested(
                (each, tests),
                (tests.differs, tests.equivalent),
                ((tests.p, 2), None if tests.equivalent_p is None else (tests.equivalent_p, 1)),
            )
            for each, tests in zip(paired, tested, strict=True)
        ]

    judged = look_by_look(planned, looks, test)
    return {arm: (*found, look) for arm, (found, look) in judged.items()}


def decide(
    paired: Sequence[Pairs],
    noise: Noise,
    *,
    margin: float | None = None,
    fewest: int = FEWEST,
    steps: Sequence[float] | None = None,
    equal_steps: Sequence[float] | None = None,
) -> list[Tests]:
    """Test all arms on one metric; they are one family. steps, equal_steps: levels of `holm`, of
    differences and of equivalences."""
    if not paired:
        return []
    errors = [
        error(each.differences, noise.parts({each.arm: 1.0, noise.baseline: -1.0}))
        for each in paired
    ]
    means = [float(each.differences.mean()) for each in paired]
    enough = [len(each.seeds) >= fewest for each in paired]
    ps = [
        each.p(mean) if judged else 1.0
        for each, mean, judged in zip(errors, means, enough, strict=True)
    ]
    p_holm, of_ps = holm(ps, steps), holm_levels(ps, steps)
    equal_ps: Sequence[float | None] = [None] * len(paired)
    equal = equal_ps
    if margin is not None:
        equal_ps = found = [
            each.equivalent_p(mean, margin) if judged else 1.0
            for each, mean, judged in zip(errors, means, enough, strict=True)
        ]
        equal = holm(found, equal_steps)
    return [
        Tests(
            error=errors[i],
            p=ps[i],
            p_holm=p_holm[i],
            equivalent_p=equal_ps[i],
            equivalent_p_holm=equal[i],
            differs=p_holm[i] <= LEVEL,
            equivalent=(p := equal[i]) is not None and p <= LEVEL,
            level=of_ps[i],
        )
        for i in range(len(paired))
    ]


def summary(values: Sequence[float]) -> Summary:
    n = len(values)
    mean = float(np.mean(values)) if n else None
    return Summary(n, mean, float(np.std(values, ddof=1)) if n > 1 else None)


def _between_seeds(summaries: Sequence[Summary]) -> float | None:
    """The standard deviation of an arm between its seeds, pooled over the arms."""
    several = [(each.n - 1, each.sd) for each in summaries if each.sd is not None]
    df = sum(own for own, _ in several)
    return float(np.sqrt(sum(own * sd**2 for own, sd in several) / df)) if df else None


def _noisy(noise: Noise) -> list[str]:
    """A warning for each arm whose noise is far from that of the others."""
    return [
        f"the runs of {arm!r} vary {certain(np.sqrt(ratio))} times as much as those of the others"
        " between seeds, so "
        + (
            "every test counts its noise apart from theirs"
            if arm == noise.baseline
            else "its verdict rests on its own spread, which needs more seeds"
        )
        for arm, ratio in noise.noisy.items()
        if np.isfinite(ratio)
    ]


def _assumed(noise: Noise) -> list[str]:
    """A sentence that compares the noise found with the noise assumed, if any was."""
    if not noise.assumed.df:
        return []
    found, assumed = (
        f"{certain(np.sqrt(part.variance))} ({counted(int(part.df), 'degree')} of freedom)"
        for part in (noise.found, noise.assumed)
    )
    test = f"(F test, p {probability(noise.agreement)})"
    agrees = noise.agreement > LEVEL
    use = (
        "verdicts use both"
        if noise.known.df
        else f"verdicts of {FEWEST} or more seeds use that of this study only"
        if agrees
        else "verdicts do not use the noise assumed"
    )
    relation = "agrees with" if agrees else "differs from"
    return [
        f"the noise of this study, {found}, {relation} the noise assumed, {assumed}, {test}; {use}"
    ]


def _few(arms: Sequence[Comparison], fewest: int) -> str:
    """A warning for arms with too few seeds for a verdict."""
    least = min(each.n for each in arms)
    return f"{counted(least, 'seed')}: a verdict needs {fewest}" if least < fewest else ""


def _comparison(
    paired: Pairs,
    tests: Tests,
    look: Look | None,
    mode: str,
    margin: float | None,
    family: int,
    spread: float | None,
    noise: Noise,
) -> Comparison:
    difference, n = float(paired.differences.mean()), len(paired.seeds)
    interval = tests.error.interval(difference, tests.level)
    loss = difference if mode == "min" else -difference
    kind = FEW if n < fewest_seeds(noise) else _kind(tests, loss)
    verdict = Verdict(
        kind=kind,
        loss=loss,
        interval=None if interval is None else _oriented(interval, mode),
        n=n,
        planned=len({*paired.seeds, *paired.missing, *paired.baseline_missing}),
        p=None if kind == FEW else tests.equivalent_p_holm if kind == EQUIVALENT else tests.p_holm,
        family=family,
        margin=margin,
        seeds_needed=(seeds_needed(difference, tests.error, family) if kind == NONE else None),
        spread=spread,
        look=look,
    )
    return Comparison(
        pairs=paired,
        difference=difference,
        interval=interval,
        size=difference / spread if spread else None,
        tests=tests,
        verdict=verdict,
        look=look,
    )


def seeds_needed(effect: float, found: Error, family: int) -> int | None:
    """The seeds that would show an effect as large as the observed one with power `power.POWER`.

    family: contrasts that are tested together. None: more than power.MOST, or the effect is within
    its standard error. The effect observed with few seeds is uncertain, and so is this number.
    """
    if not effect or abs(effect) < found.se or not found.se:
        return None
    size = abs(effect) / (found.se * np.sqrt(found.n / 2))
    needed = power.seeds_for(size, family)
    return needed if needed is None else max(needed, found.n + 1)


def _kind(tests: Tests, loss: float) -> str:
    """Choose the verdict. Equivalence comes first: differences within the margin do not matter."""
    if tests.equivalent:
        return EQUIVALENT
    if not tests.differs:
        return NONE
    return WORSE if loss > 0 else BETTER


def _oriented(interval: Interval, mode: str) -> Interval:
    """Turn an interval of the difference into one of the loss, whose positive values are worse."""
    return interval if mode == "min" else Interval(-interval.high, -interval.low)
