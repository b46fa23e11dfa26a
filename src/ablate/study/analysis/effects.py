"""Main effects and interactions of factorial and fractional designs.

Ordinary least squares with the seed as a block and sum-to-zero coding, so that a main effect is an
average over the options of all other factors; a term's p is that of its F test given all others
(type III). Interactions of more than two factors are assumed to be zero (Box, Hunter and Hunter
2005, Statistics for Experimenters, chapters 5 and 6). Residuals are assumed to be normal with equal
variance in every cell: if some cells nearly diverge, look at the cells.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import statsmodels.api as sm

from ablate.study.analysis.compare import holm
from ablate.study.analysis.confounding import TIMES, Factors, Term, beyond_one, design_matrix
from ablate.study.analysis.pairs import PRECISION, numbers
from ablate.study.analysis.stats import LEVEL, Interval
from ablate.study.numbers import certain, interval_words, probability

Run = tuple[Mapping[str, str], int, float | None]  # option of every factor, seed, number


@dataclass(frozen=True)
class Effect:
    """The main effect of one factor, or the interaction of two."""

    factors: Term
    options: tuple[tuple[str, ...], ...]  # of each factor, the baseline's first
    mode: str
    effect: float | None  # mean(second option) - mean(first); of two factors half the difference
    #                       between the effects of one at either option of the other; None with
    #                       more than two options
    interval: Interval | None  # t, in units of the metric, not widened for several effects
    df: int
    p: float | None  # None without residual variance
    p_holm: float | None  # over the main effects, or over the interactions
    aliases: tuple[Term, ...]  # terms that this design cannot tell from it, with either sign
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
        if self.aliases:
            others = ", ".join(map(TIMES.join, self.aliases))
            text += f"; in this design it is aliased with {others}"
        return f"{self.name}: {text}"


@dataclass(frozen=True)
class Effects:
    """The effects of a study's factors on one metric."""

    effects: tuple[Effect, ...]  # main effects in the order of factors, then interactions
    warnings: tuple[str, ...]


def effects(
    runs: Iterable[Run],
    *,
    factors: Factors,
    mode: str,
    allow_missing: bool = False,
) -> Effects:
    """Estimate all factors and pairs of factors, from runs of a factorial or fractional design.

    A run without a number is missing, and so is a seed that only another cell has. Nothing is
    estimated then, unless allow_missing; the effects are those of the fitted model, no longer plain
    differences of means.
    """
    assert mode in ("min", "max")
    table, missing = _cells(runs, factors)
    if not table or (missing and not allow_missing):
        return Effects((), ("nothing estimated: runs are missing",))
    cells = [cell for cell, _, _ in table]
    seeds = [seed for _, seed, _ in table]
    y = np.array([value for *_, value in table])
    design, columns_of, aliased = design_matrix(cells, seeds, factors)
    fit = sm.OLS(y, design).fit()
    df = len(y) - design.shape[1]
    sd = float(np.sqrt(fit.ssr / df)) if df > 0 else None
    judged = sd is not None and sd > PRECISION * np.abs(y).max()
    estimates = [
        Effect(
            factors=term,
            options=tuple(tuple(factors[factor]) for factor in term),
            mode=mode,
            effect=2 * float(fit.params[columns][0]) if _two_level(term, factors) else None,
            interval=_interval(fit, columns) if judged and _two_level(term, factors) else None,
            df=len(range(*columns.indices(design.shape[1]))),
            p=float(fit.f_test(np.eye(design.shape[1])[columns]).pvalue) if judged else None,
            p_holm=None,
            aliases=tuple(other for other, equals in aliased.items() if term in equals),
            means=_means(term, cells, y, factors),
        )
        for term, columns in columns_of.items()
    ]
    return Effects(
        effects=tuple(_with_holm(estimates)),
        warnings=_warnings(df, judged, aliased, missing),
    )


def _cells(runs: Iterable[Run], factors: Factors) -> tuple[list[tuple[Term, int, float]], int]:
    """Return the runs with a number, by cell and seed, and how many have none."""
    by_cell: dict[Term, dict[int, float | None]] = {}
    for options, seed, value in runs:
        cell = tuple(options[factor] for factor in factors)
        assert all(o in factors[f] for f, o in zip(factors, cell, strict=True)), cell
        by_seed = by_cell.setdefault(cell, {})
        assert seed not in by_seed, f"two runs of {cell} with seed {seed}"
        by_seed[seed] = value
    seeds = sorted({seed for by_seed in by_cell.values() for seed in by_seed})
    finite = {cell: numbers(by_seed) for cell, by_seed in by_cell.items()}
    table = [
        (cell, s, by_seed[s]) for cell, by_seed in finite.items() for s in seeds if s in by_seed
    ]
    return table, len(finite) * len(seeds) - len(table)


def _two_level(term: Term, factors: Factors) -> bool:
    return all(len(factors[factor]) == 2 for factor in term)


def _interval(fit: sm.regression.linear_model.RegressionResults, at: slice) -> Interval:
    low, high = 2 * fit.conf_int(LEVEL)[at][0]
    return Interval(float(low), float(high))


def _means(term: Term, cells: Sequence[Term], y: np.ndarray, factors: Factors) -> dict[Term, float]:
    at = [list(factors).index(factor) for factor in term]
    options = [tuple(cell[i] for i in at) for cell in cells]
    return {
        chosen: float(np.mean([v for o, v in zip(options, y, strict=True) if o == chosen]))
        for chosen in product(*(factors[factor] for factor in term))
        if chosen in options
    }


def _with_holm(effects: Sequence[Effect]) -> list[Effect]:
    """Apply Holm to main effects and interactions separately: they answer different questions."""
    adjusted: dict[Term, float] = {}
    for order in (1, 2):
        family = {e.factors: e.p for e in effects if len(e.factors) == order and e.p is not None}
        if family:
            adjusted.update(zip(family, holm(list(family.values())), strict=True))
    return [replace(each, p_holm=adjusted.get(each.factors)) for each in effects]


def _warnings(
    df: int, judged: bool, aliased: Mapping[Term, tuple[Term, ...]], missing: int
) -> tuple[str, ...]:
    warnings = []
    if missing:
        warnings.append(f"runs without a number: {missing}; effects are those of a fitted model")
    warnings += beyond_one(aliased)
    if df == 0:
        warnings.append("no interval and no p: as many terms as runs; run more seeds")
    elif not judged:
        warnings.append("no interval and no p: the terms explain every run without a remainder")
    return tuple(warnings)


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
        return "nothing to judge it by"
    # As in words, the sign of worse and better is the same for the interval and the amount.
    turned = effect.effect is not None and effect.effect < 0
    bounds = "" if interval is None else interval_words(interval, flip=turned) + ", "
    return f"{bounds}Holm p {probability(effect.p_holm)}"
