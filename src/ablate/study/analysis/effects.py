"""Main effects and interactions of factorial designs.

Each seed has its own estimates, by least squares with sum-to-zero coding, so that a main effect
is an average over the options of all other factors, given all other terms. The test compares
their mean over the seeds with their own spread between seeds: an effect that differs from seed
to seed is not known better for being seen with several options of another factor, nor for the
residuals of other effects (pooled with them, two effects that vary were shown in 10 % of simulated
studies without any). Of one number this is the t test; of several the F test of repeated measures,
whose degrees of freedom are reduced by Greenhouse and Geisser 1959, Psychometrika 24, for spreads
that differ. Interactions of more than two factors are assumed to be zero (Box, Hunter and Hunter
2005, Statistics for Experimenters, chapters 5 and 6).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from scipy import special

from ablate.study.analysis.collect import Study
from ablate.study.analysis.comparable import Objection
from ablate.study.analysis.confounding import (
    TIMES,
    Factors,
    Term,
    design_matrix,
    taken_as_zero,
    varied,
)
from ablate.study.analysis.noise import FEWEST, Error, error
from ablate.study.analysis.pairs import PRECISION, numbers
from ablate.study.analysis.stats import LEVEL, Interval, holm, holm_levels
from ablate.study.numbers import certain, interval_words, probability

FactorialRun = tuple[Mapping[str, str], int, float | None]  # option of every factor, seed, number


@dataclass(frozen=True)
class Effect:
    """The main effect of one factor, or the interaction of two."""

    factors: Term
    options: tuple[tuple[str, ...], ...]  # of each factor, the baseline's first
    mode: str
    effect: float | None  # mean(second option) - mean(first); of two factors half the difference
    #                       between the effects of one at either option of the other; None with
    #                       more than two options
    interval: Interval | None  # in units of the metric, at the level of its test
    df: int
    p: float | None  # None of fewer seeds than `FEWEST`
    p_holm: float | None  # over the main effects, or over the interactions
    means: dict[Term, float]  # plain mean over the runs of each option, or pair of options

    @property
    def name(self) -> str:
        return TIMES.join(self.factors)

    @property
    def shown(self) -> bool:
        """Whether it may be called an effect at all."""
        return self.p_holm is not None and self.p_holm <= LEVEL

    def words(self) -> str:
        """Write "norm: post worse than pre by 0.12 (95 % 0.10 to 0.14, Holm p 0.002)"."""
        text = _two_options(self) if self.effect is not None else _more_options(self)
        return f"{self.name}: {text}"


@dataclass(frozen=True)
class Effects:
    """The effects of a study's factors on one metric."""

    effects: tuple[Effect, ...] = ()  # main effects in the order of factors, then interactions
    warnings: tuple[str, ...] = ()

    @property
    def main(self) -> list[Effect]:
        return [effect for effect in self.effects if len(effect.factors) == 1]

    @property
    def interactions(self) -> list[Effect]:
        """In the order of their p."""
        pairs = [effect for effect in self.effects if len(effect.factors) == 2]
        return sorted(pairs, key=lambda e: 2.0 if e.p is None else e.p)


def effects(
    runs: Iterable[FactorialRun],
    *,
    factors: Factors,
    mode: str,
    allow_missing: bool = False,
) -> Effects:
    """Estimate all factors and pairs of factors, from runs of a factorial design.

    A run without a number is missing, and so is a seed that only another cell has. Nothing is
    estimated then, unless allow_missing: a seed that lacks a run is left out.
    """
    assert mode in ("min", "max")
    by_cell, missing = _cells(runs, factors)
    cells = list(by_cell)
    seeds = [s for s in next(iter(by_cell.values()), {}) if all(s in by_cell[c] for c in cells)]
    if not seeds or (missing and not allow_missing):
        return Effects(warnings=("nothing estimated: runs are missing",))
    y = np.array([[by_cell[cell][seed] for cell in cells] for seed in seeds])  # seeds, cells
    cells, factors, gone = _left(cells, factors)
    design, columns_of, lost = design_matrix(cells, factors)
    of_seeds = y @ np.linalg.pinv(design).T  # seeds, columns
    covariance = np.linalg.inv(design.T @ design)  # but for the variance of a run
    smallest = PRECISION * float(np.abs(y).max())
    estimates: list[Effect] = []
    errors: list[Error | None] = []
    for term, at in columns_of.items():
        found = np.where(np.abs(of_seeds[:, at]) > smallest, of_seeds[:, at], 0.0)
        if np.ptp(found, axis=0).max() <= smallest:  # equal but for rounding
            found = np.broadcast_to(found[:1], found.shape)
        scaled = found @ np.linalg.cholesky(np.linalg.inv(covariance[at, at]))  # as one run varies
        judged = len(seeds) >= FEWEST
        two = all(len(factors[factor]) == 2 for factor in term)
        errors.append(error(2 * found[:, 0], None) if judged and two else None)
        estimates.append(
            Effect(
                factors=term,
                options=tuple(tuple(factors[factor]) for factor in term),
                mode=mode,
                effect=2 * float(found.mean()) if two else None,
                interval=None,
                df=found.shape[1],
                p=_repeated(scaled) if judged else None,
                p_holm=None,
                means=_means(term, cells, y.mean(axis=0), factors),
            )
        )
    warnings = gone
    if missing:
        warnings.append(f"runs without a number: {missing}; seeds with every run: {len(seeds)}")
    warnings += taken_as_zero(lost)
    if len(seeds) < FEWEST:
        warnings.append(f"no interval and no p of fewer than {FEWEST} seeds")
    return Effects(
        effects=tuple(_with_holm(estimates, errors)),
        warnings=tuple(warnings),
    )


def crossed_effects(
    study: Study, metric: str, mode: str, objections: Sequence[Objection]
) -> Effects | None:
    """None without crossed factors: the effect of a single one is in the table."""
    baseline = study.plan.get("own", {})
    cells = {arm.name: baseline | dict(arm.changes) for arm in study.arms if arm.same_as is None}
    factors = varied(list(cells.values()), baseline)
    if study.plan.get("design") != "factorial" or len(factors) == 1:
        return None
    hindering = (o for o in objections if not o.allowed and o.rule != "seeds")
    if first := next(hindering, None):
        why = f"{first.arm}: {first.reason} (rule '{first.rule}')"
        return Effects(warnings=(f"Effects are not estimated: {why}",))
    runs = [
        (cell, seed, study.by_seed(name, metric).get(seed))
        for name, cell in cells.items()
        for seed in study.plan["seeds"][: next(iter(study.looks), None)]
    ]
    allowed = any(o.allowed and o.rule == "seeds" for o in objections)
    return effects(runs, factors=factors, mode=mode, allow_missing=allowed)


def _repeated(estimates: np.ndarray) -> float:
    """The p of a mean of zero. estimates: seeds, numbers, of one variance if runs are alike."""
    count, size = estimates.shape
    if size == 1 or np.ptp(estimates, axis=0).max() == 0:  # as of equal differences
        of_seeds = estimates[:, 0] if size == 1 else np.abs(estimates).sum(axis=1)
        return error(of_seeds, None).p(float(of_seeds.mean()))
    spread = np.atleast_2d(np.cov(estimates, rowvar=False))
    epsilon = np.trace(spread) ** 2 / (size * np.trace(spread @ spread))
    f = count * float((estimates.mean(axis=0) ** 2).sum()) / float(np.trace(spread))
    return float(special.fdtrc(epsilon * size, epsilon * size * (count - 1), f))


def _cells(
    runs: Iterable[FactorialRun], factors: Factors
) -> tuple[dict[Term, dict[int, float]], int]:
    by_cell: dict[Term, dict[int, float | None]] = {}
    for options, seed, value in runs:
        cell = tuple(options[factor] for factor in factors)
        assert all(o in factors[f] for f, o in zip(factors, cell, strict=True)), cell
        by_seed = by_cell.setdefault(cell, {})
        assert seed not in by_seed, f"two runs of {cell} with seed {seed}"
        by_seed[seed] = value
    seeds = {seed for by_seed in by_cell.values() for seed in by_seed}
    finite = {cell: found for cell, by_seed in by_cell.items() if (found := numbers(by_seed))}
    return finite, len(by_cell) * len(seeds) - sum(map(len, finite.values()))


def _left(cells: Sequence[Term], factors: Factors) -> tuple[list[Term], Factors, list[str]]:
    """The cells and the factors that have runs, and a line for each option without a run."""
    used = {factor: {cell[n] for cell in cells} for n, factor in enumerate(factors)}
    gone = [
        f"{factor}={option} has no result"
        for factor, options in factors.items()
        for option in options
        if option not in used[factor]
    ]
    left = {f: [o for o in options if o in used[f]] for f, options in factors.items()}
    kept = [n for n, options in enumerate(left.values()) if len(options) > 1]
    varying = {f: options for f, options in left.items() if len(options) > 1}
    return [tuple(cell[n] for n in kept) for cell in cells], varying, gone


def _means(term: Term, cells: Sequence[Term], y: np.ndarray, factors: Factors) -> dict[Term, float]:
    at = [list(factors).index(factor) for factor in term]
    options = [tuple(cell[i] for i in at) for cell in cells]
    return {
        chosen: float(np.mean([v for o, v in zip(options, y, strict=True) if o == chosen]))
        for chosen in product(*(factors[factor] for factor in term))
        if chosen in options
    }


def _with_holm(effects: Sequence[Effect], errors: Sequence[Error | None]) -> list[Effect]:
    """Apply Holm to main effects and interactions separately: they answer different questions."""
    done = {}
    for order in (1, 2):
        family = [
            (effect, of_mean, effect.p)
            for effect, of_mean in zip(effects, errors, strict=True)
            if len(effect.factors) == order and effect.p is not None
        ]
        ps = [p for _, _, p in family]
        for (effect, of_mean, _), p, level in zip(family, holm(ps), holm_levels(ps), strict=True):
            interval = of_mean.interval(effect.effect or 0.0, level) if of_mean else None
            done[effect.factors] = replace(effect, p_holm=p, interval=interval)
    return [done.get(effect.factors, effect) for effect in effects]


def _two_options(effect: Effect) -> str:
    """Describe an effect of two options; nothing is claimed unless its p reaches the level."""
    assert effect.effect is not None
    times = len(effect.factors)  # an interaction is described as a difference of two effects
    change = times * effect.effect * (1 if effect.mode == "min" else -1)
    interval = effect.interval
    if interval is not None:
        interval = Interval(times * interval.low, times * interval.high)
    amount = certain(abs(change), interval)
    evidence = _evidence(effect, interval)
    low, high = effect.options[0]
    way = "worse" if change > 0 else "better"
    if times == 1:
        if effect.shown:
            return f"{high} {way} than {low} by {amount} ({evidence})"
        return (
            f"no difference shown between {low} and {high} ({high} {way} by {amount}, {evidence})"
        )
    first, second = effect.options[1]
    other = effect.factors[1]
    step = (
        f"the step from {low} to {high} is {amount} {way}"
        f" at {other}={second} than at {other}={first}"
    )
    return f"{step} ({evidence})" if effect.shown else f"no interaction shown ({step}, {evidence})"


def _more_options(effect: Effect) -> str:
    evidence = _evidence(effect, None)
    if len(effect.factors) == 2:
        text = "the effect of one depends on the other" if effect.shown else "no interaction shown"
        return f"{text} ({evidence})"
    ranked = sorted(effect.means, key=lambda option: effect.means[option])
    best, worst = (ranked[0], ranked[-1]) if effect.mode == "min" else (ranked[-1], ranked[0])
    ends = ", ".join(
        f"{word} {option[0]} at {certain(effect.means[option])}"
        for word, option in (("best", best), ("worst", worst))
    )
    count = len(effect.options[0])
    none = f"no difference shown between {count} options"
    text = f"the {count} options differ" if effect.shown else none
    return f"{text} ({ends}, {evidence})"


def _evidence(effect: Effect, interval: Interval | None) -> str:
    if effect.p_holm is None:
        return "not testable"
    # As in words, the sign of worse and better is the same for the interval and the amount.
    turned = effect.effect is not None and effect.effect < 0
    bounds = "" if interval is None else interval_words(interval, flip=turned) + ", "
    return f"{bounds}Holm p {probability(effect.p_holm)}"
