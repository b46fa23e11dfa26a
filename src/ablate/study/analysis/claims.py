"""Verdicts on the claims of a study: confirmed, refuted or undecided.

Each claim is about one number for each seed, the contrast: a sum of the values of arms times
weights, oriented so that the claim says it is positive, less the smallest effect that counts. It is
confirmed if its mean differs from zero upwards, refuted if downwards, and undecided else: an effect
that is there but smaller than what counts refutes a claim, too. An equivalence is confirmed by two
one-sided t tests (Schuirmann 1987), and refuted if the difference is beyond its bounds. The tests
are those of `compare`, whose null hypothesis is that the contrast is symmetric about zero; Holm's
correction (1979) runs over the claims of the study, of confirmations and of refutations apart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ablate.study.analysis import derived, stats
from ablate.study.analysis.compare import FEWEST, decisive, holm
from ablate.study.analysis.pairs import Pairs
from ablate.study.analysis.stats import LEVEL
from ablate.study.numbers import seeds_in_words
from ablate.study.plan.claims import Claim, Term

CONFIRMED, REFUTED, UNDECIDED, UNTESTED = "confirmed", "refuted", "undecided", "not tested"


@dataclass(frozen=True)
class Settled:
    """effect: mean contrast, positive in the sense of the claim; None without values. interval: its
    t interval. p: after Holm, of the verdict. seeds_needed: of an undecided one; None: no number is
    suggested. why: of one that was not tested."""

    claim: Claim
    verdict: str
    n: int = 0
    effect: float | None = None
    interval: stats.Interval | None = None
    p: float | None = None
    seeds_needed: int | None = None
    why: str = ""


Values = Callable[[Term], Mapping[int, float]]


def settle(
    claims: Sequence[Claim],
    values: Values,
    *,
    seeds: Callable[[Claim], Sequence[int]],
    mode: str,
    refused: Callable[[Claim], str] = lambda claim: "",
) -> list[Settled]:
    """values: of a term, by seed. seeds: those that a claim needs. mode: which value of the study's
    metric is better; of others their name says it, or the claim. refused: why a claim cannot be
    tested, or ""."""
    contrasts = [_contrast(claim, values, mode) for claim in claims]
    reasons = [
        refused(claim) or _lacking(seeds(claim), contrast)
        for claim, contrast in zip(claims, contrasts, strict=True)
    ]
    every = zip(claims, contrasts, reasons, strict=True)
    tested = [(claim, contrast) for claim, contrast, why in every if not why]
    confirm, refute = (
        holm([p(claim, contrast, len(tested)) for claim, contrast in tested])
        for p in (_confirmation, _refutation)
    )
    settled = (
        _settled(claim, contrast, confirmed, refuted, len(tested))
        for (claim, contrast), confirmed, refuted in zip(tested, confirm, refute, strict=True)
    )
    return [
        Settled(claim, UNTESTED, why=why) if why else next(settled)
        for claim, why in zip(claims, reasons, strict=True)
    ]


def _lacking(seeds: Sequence[int], contrast: Pairs) -> str:
    """Say for which seeds there is no value; "" for none."""
    missing = [seed for seed in seeds if seed not in contrast.seeds]
    return f"no value for {seeds_in_words(missing)}" if missing else ""


def _contrast(claim: Claim, values: Values, mode: str) -> Pairs:
    """What is claimed to be more, and to be less, by seed."""
    best = claim.mode or (derived.mode(claim.metrics[0]) if claim.metrics else mode)
    lower = claim.way == "lower" or (
        claim.way in ("better", "worse") and (best == "min") == (claim.way == "better")
    )
    signs = [(-1.0 if lower else 1.0) * term.weight for term in claim.terms]
    read = [values(term) for term in claim.terms]
    common = sorted(set.intersection(*(set(by_seed) for by_seed in read)))

    def part(sign: float, seed: int) -> float:
        terms = zip(signs, read, strict=True)
        constant = claim.constant if lower == (sign > 0) else 0.0
        return constant + sum(abs(w) * by_seed[seed] for w, by_seed in terms if w * sign > 0)

    return Pairs(
        arm=claim.says,
        seeds=tuple(common),
        values=tuple(part(1.0, seed) for seed in common),
        baseline=tuple(part(-1.0, seed) for seed in common),
        missing=(),
        baseline_missing=(),
    )


def _p(differences: np.ndarray, pairs: Pairs, family: int) -> float:
    flip = stats.sign_flip(differences, pairs.grain)
    p, rests_on = decisive(flip, stats.t_p(differences), len(differences), family)
    return 1.0 if rests_on == "nothing" else p


def _beyond(claim: Claim, d: np.ndarray) -> np.ndarray:
    """By how much each seed's contrast is on the claim's side of what counts."""
    return d - claim.by if claim.within is None else claim.within - d * np.sign(d.mean())


def _confirmation(claim: Claim, pairs: Pairs, family: int) -> float:
    d = pairs.differences
    if claim.within is not None:
        p = stats.equivalent_p(d, claim.within)
        return 1.0 if p is None or len(d) < FEWEST else p
    beyond = _beyond(claim, d)
    return _p(beyond, pairs, family) if beyond.mean() > 0 else 1.0


def _refutation(claim: Claim, pairs: Pairs, family: int) -> float:
    beyond = _beyond(claim, pairs.differences)
    return _p(beyond, pairs, family) if beyond.mean() < 0 else 1.0


def _settled(claim: Claim, pairs: Pairs, confirm: float, refute: float, family: int) -> Settled:
    d = pairs.differences
    verdict = CONFIRMED if confirm <= LEVEL else REFUTED if refute <= LEVEL else UNDECIDED
    beyond = _beyond(claim, d)
    return Settled(
        claim,
        verdict,
        n=len(d),
        effect=float(d.mean()),
        interval=stats.t_interval(d),
        p={CONFIRMED: confirm, REFUTED: refute, UNDECIDED: min(confirm, refute)}[verdict],
        seeds_needed=stats.seeds_needed(beyond, family) if verdict == UNDECIDED else None,
    )
