"""Verdicts on the claims of a study: confirmed, refuted or undecided.

Each claim is about one number for each seed, the contrast: a sum of the values of arms times
weights, oriented so that the claim predicts a positive value, less the smallest effect that counts.
It is confirmed if its mean differs from zero upwards, refuted if downwards, and undecided else: an
effect below the smallest that counts also refutes a claim. An equivalence is confirmed by two
one-sided t tests (Schuirmann 1987), and refuted if the difference is beyond its bounds. The error
of a contrast comes from the noise of the whole study (`noise`), block by block if its terms are of
several blocks; a contrast of several metrics, or one whose seeds do not cancel, has only its own
spread. Holm's correction (1979) runs over the claims of the study, separately for confirmations and
for refutations, and within each look if seeds are added until claims are decided (`looks`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import inf

import numpy as np

from ablate.study.analysis import derived
from ablate.study.analysis.compare import seeds_needed
from ablate.study.analysis.looks import Look, Tested, look_by_look
from ablate.study.analysis.noise import FEWEST, FEWEST_KNOWN, Error, Noise, Part, error
from ablate.study.analysis.pairs import Pairs
from ablate.study.analysis.stats import LEVEL, Interval, holm, holm_levels
from ablate.study.numbers import seeds_in_words
from ablate.study.plan.claims import Claim, Term

CONFIRMED, REFUTED, UNDECIDED, UNTESTED = "confirmed", "refuted", "undecided", "not tested"


@dataclass(frozen=True)
class ClaimResult:
    """effect: mean contrast, positive in the sense of the claim; None without values. interval: at
    the level of its test. p: after Holm, of the verdict. seeds_needed: of an undecided one; None:
    no number is suggested. why: of one that was not tested. look: None if the number of seeds is
    fixed."""

    claim: Claim
    verdict: str
    n: int = 0
    effect: float | None = None
    interval: Interval | None = None
    p: float | None = None
    seeds_needed: int | None = None
    why: str = ""
    look: Look | None = None


Values = Callable[[Term], Mapping[int, float]]
Noises = Callable[[str | None, str | None], Noise]  # of a metric and a block, as of a Term


@dataclass(frozen=True)
class _Tested:
    """A claim with its contrast. beyond: the contrast minus the smallest effect that counts,
    positive on the claim's side."""

    claim: Claim
    contrast: Pairs
    error: Error
    known_df: float  # of the known noise in it

    @property
    def mean(self) -> float:
        return float(self.contrast.differences.mean())

    @property
    def beyond(self) -> float:
        claim = self.claim
        return (
            self.mean - claim.min_effect if claim.margin is None else claim.margin - abs(self.mean)
        )

    @property
    def n(self) -> int:
        return len(self.contrast.seeds)

    def interval(self, level: float) -> Interval | None:
        return self.error.interval(self.mean, level)

    def seeds_needed(self, family: int) -> int | None:
        return seeds_needed(self.beyond, self.error, family)

    def p(self, *, confirms: bool) -> float:
        """p of the confirmation, or of the refutation."""
        if len(self.contrast.seeds) < (FEWEST_KNOWN if self.known_df else FEWEST):
            return 1.0
        if confirms and self.claim.margin is not None:
            return self.error.equivalent_p(self.mean, self.claim.margin)
        return self.error.p(self.beyond) if (self.beyond > 0) == confirms else 1.0


@dataclass(frozen=True)
class Sampled:
    """A claim about effective compute. found: its estimate; samples: of the bootstrap; n: seeds."""

    claim: Claim
    n: int
    found: float
    samples: np.ndarray

    @property
    def sign(self) -> float:
        return -1.0 if self.claim.direction == "lower" else 1.0

    @property
    def mean(self) -> float:
        return self.sign * (self.found - self.claim.constant)

    beyond = mean

    def p(self, *, confirms: bool) -> float:
        """Twice the share of samples on the other side."""
        if (self.mean > 0) != confirms:
            return 1.0
        against = (self.samples - self.claim.constant) * (self.found - self.claim.constant) <= 0
        return min(1.0, 2 * float(against.sum() + 1) / (len(self.samples) + 1))

    def interval(self, level: float) -> Interval | None:
        ends = self.sign * (self.samples - self.claim.constant)
        return Interval(*np.quantile(ends, [level / 2, 1 - level / 2], method="nearest").tolist())

    def seeds_needed(self, family: int) -> int | None:
        return None


def settle(
    claims: Sequence[Claim],
    values: Values,
    noises: Noises,
    *,
    seeds: Callable[[Claim], Sequence[int]],
    mode: str,
    refused: Callable[[Claim], str] = lambda claim: "",
    looks: tuple[int, ...] = (),
    sampled: Callable[[Claim], Sampled | str] = lambda claim: "",
) -> list[ClaimResult]:
    """values: of a term, by seed. noises: of the study. seeds: those planned for all arms of a
    claim. mode: which value of the study's metric is better; of others their name tells it, or the
    claim. refused: the reason why a claim cannot be tested, or "". looks: numbers of seeds at which
    claims are tested; without them they are tested once. sampled: of a claim about effective
    compute, or why it cannot be tested."""
    contrasts = [_contrast(claim, values, mode) for claim in claims]
    of_ladder = {n: sampled(claim) for n, claim in enumerate(claims) if claim.of_ladder}
    planned = [seeds(claim) for claim in claims]
    reasons = [
        refused(claim) or _lacking(of_claim, contrast)
        for claim, of_claim, contrast in zip(claims, planned, contrasts, strict=True)
    ]
    for n, found in of_ladder.items():
        reasons[n] = refused(claims[n]) or (found if isinstance(found, str) else "")
    family = [number for number, why in enumerate(reasons) if not why]

    @cache
    def noise(metric: str | None, block: str | None, chosen: tuple[int, ...]) -> Noise:
        return noises(metric, block).within(chosen)

    def test(
        testing: Sequence[int], count: int | None, *steps: Sequence[float]
    ) -> list[Tested[ClaimResult]]:
        tested: list[_Tested | Sampled] = []
        for number in testing:
            if isinstance(known := of_ladder.get(number), Sampled):
                tested.append(known)
                continue
            claim, chosen = claims[number], tuple(planned[number][:count])
            contrast = contrasts[number].within(chosen)
            parts, known_df = _parts(claim, lambda *of, chosen=chosen: noise(*of, chosen))
            tested.append(_Tested(claim, contrast, error(contrast.differences, parts), known_df))
        return _judged(tested, len(family), *(steps or (None, None)))

    if looks:
        by_look = look_by_look({n: len(planned[n]) for n in family}, looks, test)
        judged = {n: replace(found, look=look) for n, (found, look) in by_look.items()}
    else:
        tested = test(family, None)
        judged = {n: each.result for n, each in zip(family, tested, strict=True)}
    return [
        judged.get(n) or ClaimResult(claim, UNTESTED, why=why or "fewer seeds than the first look")
        for n, (claim, why) in enumerate(zip(claims, reasons, strict=True))
    ]


def _judged(
    tested: Sequence[_Tested | Sampled],
    family: int,
    confirm_steps: Sequence[float] | None,
    refute_steps: Sequence[float] | None,
) -> list[Tested[ClaimResult]]:
    """The steps: levels of `holm`, of confirmations and of refutations."""
    confirm, refute = ([each.p(confirms=c) for each in tested] for c in (True, False))
    results = (
        _settled(each, family, *of_claim)
        for each, *of_claim in zip(
            tested,
            holm(confirm, confirm_steps),
            holm(refute, refute_steps),
            holm_levels(confirm, confirm_steps),
            holm_levels(refute, refute_steps),
            strict=True,
        )
    )
    return [
        Tested(
            result,
            (result.verdict == CONFIRMED, result.verdict == REFUTED),
            ((p, 2 if each.claim.margin is None else 1), (p_refute, 2)),
        )
        for result, each, p, p_refute in zip(results, tested, confirm, refute, strict=True)
    ]


def _parts(claim: Claim, noises: Noises) -> tuple[list[Part] | None, float]:
    """The variance of a claim's contrast within a seed, block by block, None if only its own spread
    is known; and the degrees of freedom of the known noise in it."""
    if len({term.metric for term in claim.terms}) > 1:
        return None, 0
    parts: list[Part] = []
    known_df = inf
    for block in dict.fromkeys(term.block for term in claim.terms):
        noise = noises(claim.terms[0].metric, block)
        weights: dict[str, float] = {}
        for term in claim.terms:
            if term.block == block:
                arm = noise.baseline if term.arm is None else term.arm
                weights[arm] = weights.get(arm, 0.0) + term.weight
        of_block = noise.parts(weights) if set(weights) <= set(noise.values) else None
        if of_block is None:
            return None, 0
        parts.extend(of_block)
        known_df = min(known_df, noise.known.df)
    return parts, known_df


def _lacking(seeds: Sequence[int], contrast: Pairs) -> str:
    """Name the seeds without a value; "" for none."""
    missing = [seed for seed in seeds if seed not in contrast.seeds]
    return f"no value for {seeds_in_words(missing)}" if missing else ""


def _contrast(claim: Claim, values: Values, mode: str) -> Pairs:
    """By seed, the sides that the claim predicts to be larger and to be smaller."""
    lower = claim.direction == "lower"
    if claim.direction in ("better", "worse"):
        best = claim.mode or (derived.mode(claim.metrics[0]) if claim.metrics else mode)
        lower = (best == "min") == (claim.direction == "better")
    signs = [(-1.0 if lower else 1.0) * term.weight for term in claim.terms]
    read = [values(term) for term in claim.terms]
    common = sorted(set.intersection(*(set(by_seed) for by_seed in read)))

    def part(sign: float, seed: int) -> float:
        terms = zip(signs, read, strict=True)
        constant = claim.constant if lower == (sign > 0) else 0.0
        return constant + sum(abs(w) * by_seed[seed] for w, by_seed in terms if w * sign > 0)

    return Pairs(
        arm=claim.statement,
        seeds=tuple(common),
        values=tuple(part(1.0, seed) for seed in common),
        baseline=tuple(part(-1.0, seed) for seed in common),
        missing=(),
        baseline_missing=(),
    )


def _settled(
    tested: _Tested | Sampled, family: int, confirm: float, refute: float, *levels: float
) -> ClaimResult:
    verdict = CONFIRMED if confirm <= LEVEL else REFUTED if refute <= LEVEL else UNDECIDED
    return ClaimResult(
        tested.claim,
        verdict,
        n=tested.n,
        effect=tested.mean,
        interval=tested.interval(levels[tested.beyond <= 0]),
        p={CONFIRMED: confirm, REFUTED: refute, UNDECIDED: min(confirm, refute)}[verdict],
        seeds_needed=(tested.seeds_needed(family) if verdict == UNDECIDED else None),
    )
