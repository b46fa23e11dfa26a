"""Compare arms with the baseline on one metric: errors, Holm's correction, and verdicts.

A verdict is a t test of the mean paired difference, whose error comes from the noise of the whole
study (`noise`), at one number of seeds or at several (`looks`). Holm (1979) corrects the p values
over the arms. The interval of an arm belongs to its test, at the level at which Holm tests it, so
that it excludes zero if and only if a difference is shown. Equivalence is a separate claim, so Holm
is applied to its p values separately.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from math import ceil, log
from typing import Any

import numpy as np

from ablate.errors import UserError
from ablate.study.analysis import power
from ablate.study.analysis.looks import STOPPED, Look, Tested, look_by_look
from ablate.study.analysis.noise import FEWEST, FEWEST_KNOWN, Error, Noise, Part, error
from ablate.study.analysis.pairs import Pairs, Values, numbers, pair
from ablate.study.analysis.stats import LEVEL, Interval, holm, holm_levels
from ablate.study.numbers import certain, counted, interval_words, number, probability

BETTER, WORSE, EQUIVALENT, NONE = "better", "worse", "equivalent", "no difference shown"
FEW = "too few seeds"


@dataclass(frozen=True)
class Summary:
    """Mean and standard deviation of an arm over its seeds with a number; None if too few."""

    n: int
    mean: float | None
    sd: float | None  # with n - 1

    def words(self, digits: int) -> str:
        """As "1.83 ± 0.02"."""
        return number(self.mean, digits) + (
            f" ± {number(self.sd, digits)}" if self.sd is not None else ""
        )


@dataclass(frozen=True)
class Tests:
    """The p values of one arm, two-sided; those named holm are adjusted over the metric's arms."""

    error: Error
    p: float
    p_holm: float
    level: float  # at which p is tested
    equivalent_p: float | None = None  # None without a margin
    equivalent_p_holm: float | None = None

    @property
    def differs(self) -> bool:
        """From the baseline, at the level."""
        return self.p_holm <= LEVEL

    @property
    def equivalent(self) -> bool:
        """Within the margin, at the level; both may be true."""
        return self.equivalent_p_holm is not None and self.equivalent_p_holm <= LEVEL


@dataclass(frozen=True)
class Verdict:
    """The verdict on an arm and one metric, with its evidence."""

    kind: str  # BETTER, WORSE, EQUIVALENT, NONE or FEW
    loss: float  # mean difference from the baseline in units of the metric; positive is worse
    interval: Interval | None  # of the loss, at the level of the arm's test
    n: int  # seeds compared
    planned: int  # seeds that were planned for the arm or the baseline
    p: float | None  # after Holm; of equivalence if that is the verdict
    family: int  # arms that Holm ran over
    margin: float | None  # smaller differences do not matter, in units of the metric
    seeds_needed: int | None  # of "no difference shown"; None: no number is suggested
    spread: float | None = None  # standard deviation of an arm between its seeds
    look: Look | None = None  # None if the number of seeds is fixed

    def words(self) -> str:
        """Describe it, as "worse by 0.031 (95 % 0.025 to 0.037, 5 seeds, Holm p 0.002)"."""
        within = f"equivalent within {certain(self.margin or 0.0)}"
        if self.loss == 0 and self.interval is None:
            seeds = f"each of {self.n} seeds" if self.n > 1 else "the only seed"
            same = within if self.kind == EQUIVALENT else "no difference"
            return f"{same}: the same value in {seeds}"
        way = WORSE if self.loss > 0 else BETTER
        amount, evidence = certain(abs(self.loss), self.interval), self._evidence()
        amount += " every time" * (self.interval is None and self.n > 1)
        if self.kind in (BETTER, WORSE):
            units = ((self.spread, "the spread between seeds"), (self.margin, "the margin"))
            sizes = [f"{times_of(abs(self.loss), unit)} {name}" for unit, name in units if unit]
            return f"{way} by {', '.join(filter(None, [amount, ' and '.join(sizes)]))} ({evidence})"
        if self.kind == EQUIVALENT:
            return f"{within}: {way} by {amount} ({evidence})"
        if self.kind == FEW:
            return f"{FEW} for a verdict ({amount} {way}, {evidence})"
        return f"{NONE} ({amount} {way}, {evidence}; {self._advice()})"

    def _evidence(self) -> str:
        parts = []
        if self.interval is not None:
            parts.append(interval_words(self.interval, flip=self.loss < 0))
        short = f" of {self.planned}" if self.planned > self.n else ""
        parts.append(f"{self.n}{short} seed{'s' if self.n > 1 or short else ''}")
        if self.p is not None and self.n > 1:
            what = " of equivalence" * (self.kind == EQUIVALENT)
            parts.append(f"{'Holm ' * (self.family > 1)}p{what} {probability(self.p)}")
        if self.look is not None:
            parts.append(self.look.words())
        return ", ".join(parts)

    def _advice(self) -> str:
        if self.look is not None and self.look.outcome == STOPPED:
            return f"{self.look.last} seeds are unlikely to show a difference"
        if self.seeds_needed is None:
            return "effect too small to estimate the number of seeds needed"
        return f"about {self.seeds_needed} seeds would be needed"


def times_of(amount: float, unit: float) -> str:
    """How many times the unit an amount is, as "0.03 times" or "12 times"."""
    ratio = amount / unit
    return f"{ratio:.{1 if ratio < 0.1 else 2}g} times" if ratio < 100 else "over 99 times"


@dataclass(frozen=True)
class Comparison:
    """One arm against the baseline, over the seeds that both have."""

    pairs: Pairs
    difference: float  # mean of arm minus baseline, in units of the metric
    interval: Interval | None  # at the level of the arm's test
    tests: Tests
    verdict: Verdict

    @property
    def size(self) -> float | None:
        """The difference in standard deviations between the seeds of an arm."""
        return self.difference / self.verdict.spread if self.verdict.spread else None

    @property
    def look(self) -> Look | None:
        """None if the number of seeds is fixed."""
        return self.verdict.look

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
    noise: Noise

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
    judged: list[tuple[Pairs, Tests, Look | None]]
    if looks:
        judged = [*at_looks(of_chosen, tuple(looks), baseline, margin).values()]
    else:
        tests = decide(chosen, noise, margin=margin)
        judged = [(*each, None) for each in zip(chosen, tests, strict=True)]
    spread = _between_seeds([*summaries.values()])
    arms = tuple(_comparison(*each, mode, margin, len(chosen), spread, noise) for each in judged)
    warnings = [each.words() for each in chosen]
    if arms:
        warnings += [*_assumed(noise), *_noisy(noise)]
        if (least := min(each.n for each in arms)) < noise.fewest:
            warnings.append(f"{counted(least, 'seed')}: a verdict needs {noise.fewest}")
    return Comparisons(summaries, arms, tuple(dict.fromkeys(filter(None, warnings))), noise)


def _pairs_at_looks(values: Values, baseline: str) -> list[Pairs]:
    """The pairs of all arms, each over the seeds that are planned for it and the baseline."""
    found = []
    for arm, own in values.items():
        if arm != baseline:
            both = {s: value for s, value in values[baseline].items() if s in own}
            found += pair({baseline: both, arm: {s: own[s] for s in both}}, baseline)
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

    def tested(p: Callable[[Error, float], float]) -> list[float]:
        return [
            p(of_arm, float(each.differences.mean())) if len(each.seeds) >= noise.fewest else 1.0
            for each, of_arm in zip(paired, errors, strict=True)
        ]

    ps = tested(Error.p)
    # In the order of the fields of `Tests`.
    columns: list[Sequence[Any]] = [errors, ps, holm(ps, steps), holm_levels(ps, steps)]
    if margin is not None:
        equal = tested(lambda of_arm, mean: of_arm.equivalent_p(mean, margin))
        columns += [equal, holm(equal, equal_steps)]
    return [Tests(*of_arm) for of_arm in zip(*columns, strict=True)]


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
    interval = of_loss = tests.error.interval(difference, tests.level)
    loss = difference if mode == "min" else -difference
    if interval is not None and mode == "max":
        of_loss = Interval(-interval.high, -interval.low)
    kind = NONE
    if n < noise.fewest:
        kind = FEW
    elif tests.equivalent:  # first: differences within the margin do not matter
        kind = EQUIVALENT
    elif tests.differs:
        kind = WORSE if loss > 0 else BETTER
    verdict = Verdict(
        kind=kind,
        loss=loss,
        interval=of_loss,
        n=n,
        planned=len({*paired.seeds, *paired.missing, *paired.baseline_missing}),
        p=None if kind == FEW else tests.equivalent_p_holm if kind == EQUIVALENT else tests.p_holm,
        family=family,
        margin=margin,
        seeds_needed=seeds_needed(difference, tests.error, family) if kind == NONE else None,
        spread=spread,
        look=look,
    )
    return Comparison(paired, difference, interval, tests, verdict)


def seeds_needed(effect: float, found: Error, family: int) -> int | None:
    """The seeds that would show an effect as large as the observed one with power `power.POWER`.

    family: contrasts that are tested together. None: more than power.MOST, or the effect is within
    its standard error. The effect observed with few seeds is uncertain, and so is this number.
    """
    if not effect or abs(effect) < found.se or found.n < FEWEST_KNOWN:
        return None
    if not found.se:  # equal in every pair: the first n with a small `Error.p`
        return max(found.n + 1, 1 + ceil(log(family / LEVEL, 4)))
    size = abs(effect) / (found.se * np.sqrt(found.n / 2))
    needed = power.seeds_for(size, family)
    return needed if needed is None else max(needed, found.n + 1)
