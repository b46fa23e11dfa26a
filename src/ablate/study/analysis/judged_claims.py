"""The claims of a study and their verdicts, in words."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache, partial
from itertools import takewhile
from typing import Any

from ablate.study.analysis import known
from ablate.study.analysis.claims import UNDECIDED, ClaimResult, Sampled, settle
from ablate.study.analysis.collect import Study
from ablate.study.analysis.comparable import LEAKAGE, lost, objections
from ablate.study.analysis.ladder import ladder
from ablate.study.analysis.looks import STOPPED
from ablate.study.analysis.noise import Noise
from ablate.study.numbers import amount, counted, estimate, probability
from ablate.study.plan.claims import COMPUTE, GROWTH, Claim, Term, parse_claims

AFTER = "post hoc"


@dataclass(frozen=True)
class JudgedClaim:
    """A claim, its verdict, and when it was made. after: when runs existed already. scale: of the
    runs that it was judged on, as "815 k parameters, 2 M tokens"; "" if nothing was recorded."""

    settled: ClaimResult
    made: str
    after: bool
    scale: str = ""

    @property
    def verdict(self) -> str:
        return self.settled.verdict

    @property
    def scaled_verdict(self) -> str:
        """The verdict with its scale, as it may differ at another scale."""
        at = f" at {self.scale}" if self.scale and self.settled.effect is not None else ""
        return f"{self.verdict}{at}"

    @property
    def sentence(self) -> str:
        """The statement, with its source."""
        claim = self.settled.claim
        statement = claim.statement.rstrip(".")
        return f"{statement} ({claim.source})" if claim.source else statement

    @property
    def evidence(self) -> str:
        """The effect in the sense of the claim, its interval, p and seeds; why there is none."""
        settled, claim = self.settled, self.settled.claim
        if settled.effect is None:
            parts = [settled.why]
        else:
            amount = estimate(settled.effect, settled.interval)
            if claim.margin is not None:
                amount += f", claimed to be within ± {claim.margin:g}"
            elif claim.min_effect:
                amount += f", claimed to exceed {claim.min_effect:g}"
            parts = [amount, counted(settled.n, "seed"), f"Holm p {probability(settled.p)}"]
        if settled.look is not None:
            parts.append(settled.look.words())
        if settled.look is not None and settled.look.outcome == STOPPED:
            parts.append(f"{settled.look.last} seeds are unlikely to decide it")
        elif settled.verdict == UNDECIDED:
            needed = settled.seeds_needed
            parts.append(
                f"about {needed} seeds would be needed"
                if needed
                else "too close to the threshold to estimate the number of seeds needed"
            )
        if self.after:
            parts.append(AFTER)
        return "; ".join(parts)


class Evidence:
    """The values of a study for the terms of its claims, or the reasons why there are none."""

    def __init__(self, study: Study, allow: Collection[str]) -> None:
        self.study, self.allow = study.rebased(study.planned_baseline), allow
        self.left_out = {each["arm"]: each["reason"] for each in study.plan.get("illegal") or ()}
        self.broken = cache(self._broken)

    def _broken(self, block: str | None, metric: str) -> dict[str, dict[str, str]]:
        """By arm, the rules of `objections` that it breaks in a block, each with its reason."""
        broken: dict[str, dict[str, str]] = {}
        for objection in objections(self.part(block), metric, self.allow):
            # A claim may be that the loss of an arm which sees its targets is lower; the
            # seeds of other arms may be missing.
            if not objection.allowed and objection.rule not in (LEAKAGE, "seeds"):
                broken.setdefault(objection.arm, {})[objection.rule] = objection.reason
        return broken

    def part(self, block: str | None) -> Study:
        return self.study if block is None else self.study.blocks[block]

    def arm(self, term: Term) -> str:
        return term.arm or self.study.planned_baseline

    def metric(self, term: Term) -> str:
        return self.study.metric if term.metric in (None, COMPUTE, GROWTH) else term.metric

    def values(self, term: Term) -> dict[int, float]:
        """By seed; none of an arm that has no runs."""
        if self._missing(term):
            return {}
        return self.part(term.block).by_seed(self.arm(term), self.metric(term))

    def _missing(self, term: Term) -> str:
        """Return why a term's arm has no runs, or ""."""
        if any(arm.name == term.arm for arm in self.part(term.block).arms):
            return ""
        return self.left_out.get(term.arm or "", "")

    def seeds(self, claim: Claim) -> list[int]:
        """The first seeds, as far as they are planned for every arm of the claim."""
        planned = [self.part(term.block).planned(self.arm(term)) for term in claim.terms]
        every = self.study.plan["seeds"]
        return [*takewhile(lambda seed: all(seed in of for of in planned), every)]

    def refused(self, claim: Claim) -> str:
        """Why a claim is not judged, or "". Arms of another budget than the baseline's may be
        compared with each other."""
        for term in claim.terms:
            if why := self._missing(term):
                return f"{term.arm} was left out: {why}"
            part, name = self.part(term.block), self.arm(term)
            if "seeds" not in self.allow and (why := lost(part, name, self.metric(term))):
                return f"{name} is not compared: {why}"
        for arm, than in claim.differences:
            mine, others = self._rules(arm), self._rules(than) if than else {}
            for rule, why in mine.items():
                if rule != "budget" or (than and others.get("budget") != why):
                    return f"{arm.arm} is not compared: {why}"
            if than and "budget" in others and "budget" not in mine:
                return f"{than.arm} is not compared: {others['budget']}"
        return ""

    def _rules(self, term: Term) -> dict[str, str]:
        return self.broken(term.block, self.metric(term)).get(self.arm(term), {})

    def noise(self, metric: str | None, block: str | None) -> Noise:
        """The noise of the arms that are comparable on the metric, each with its own runs."""
        part, name = self.part(block), metric or self.study.metric
        broken = self.broken(block, name)
        return Noise.of(
            {
                arm.name: part.by_seed(arm.name, name)
                for arm in part.arms
                if arm.same_as in (None, arm.name) and arm.name not in broken
            },
            self.study.planned_baseline,
            known.pooled(known.files(part.plan), name),
        )


def judged_claims(
    study: Study, allow: Collection[str] = ()
) -> tuple[tuple[JudgedClaim, ...], list[str]]:
    """The claims of a study with their verdicts, and those dropped after the first run."""
    recorded: list[Mapping[str, Any]] = list(study.plan.get("claims") or ())
    kept = [entry for entry in recorded if not entry["dropped"]]
    left_out = [entry["arm"] for entry in study.plan.get("illegal") or ()]
    arms = [*(arm.name for arm in study.arms), *left_out]
    claims = parse_claims(
        [entry["claim"] for entry in kept], arms, study.planned_baseline, study.blocks
    )
    evidence = Evidence(study, allow)
    settled = settle(
        claims,
        evidence.values,
        cache(evidence.noise),
        seeds=evidence.seeds,
        mode=study.mode,
        refused=evidence.refused,
        looks=study.looks,
        sampled=partial(sampled, evidence.study),
    )
    dropped = [str(entry["claim"].get("statement")) for entry in recorded if entry["dropped"]]
    at = scale(study)
    return tuple(
        JudgedClaim(each, entry["made"], entry["after"], at)
        for each, entry in zip(settled, kept, strict=True)
    ), dropped


def sampled(study: Study, claim: Claim) -> Sampled | str:
    """The value of a claim about effective compute with its samples, or why it has none."""
    term = claim.terms[0]
    on = ladder(study, study.metric, study.mode)
    if on is None:
        return "its sizes have other data, or their FLOPs are equal or not known"
    climb = next((each for each in on.climbs if each.arm == term.arm), None)
    if climb is None or not climb.samples:
        return "its sizes have no scaling law, which needs two seeds of all runs and a falling loss"
    if term.block is None:
        if climb.growth is None:
            return "its losses are below the floor of the scaling law at small and large sizes"
        return Sampled(claim, climb.n, climb.growth, climb.samples[""])
    if (speedup := climb.speedups[term.block]) is None:
        return "its FLOPs are not known"
    return Sampled(claim, climb.n, speedup.factor, climb.samples[term.block])


def scale(study: Study) -> str:
    """The size and the training of the baseline's runs: parameters and training data, such as
    tokens; with blocks, from the smallest to the largest."""
    runs = [run for run in study.runs_of(study.baseline.name).values() if run.finished]
    sizes = {run.number("parameters", "total") for run in runs}
    trained = {run.trained for run in runs}
    return ", ".join(
        f"{amount(low) if amount(low) == amount(high) else f'{amount(low)} to {amount(high)}'} {of}"
        for values, of in ((sizes, "parameters"), (trained, runs[0].unit if runs else ""))
        if (known := sorted(value for value in values if value)) and of
        for low, high in [(float(f"{known[0]:.2g}"), float(f"{known[-1]:.2g}"))]
    )
