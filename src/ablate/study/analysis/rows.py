"""The content of the report, arm by arm, before it is formatted."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from statistics import fmean
from typing import Any

from ablate.errors import UserError, suggest
from ablate.study.analysis import derived, known
from ablate.study.analysis.collect import Arm, Seed, Study
from ablate.study.analysis.comparable import Objection, objections
from ablate.study.analysis.compare import (
    BETTER,
    EQUIVALENT,
    FEW,
    NONE,
    WORSE,
    Comparison,
    Comparisons,
    Summary,
    compare,
    summary,
)
from ablate.study.analysis.curves import TRAINING, Cost, cost_of, curve_column, curve_of
from ablate.study.analysis.effects import Effects, crossed_effects
from ablate.study.analysis.examples import OverExamples
from ablate.study.analysis.judged_claims import JudgedClaim, judged_claims
from ablate.study.analysis.ladder import Ladder, ladder
from ablate.study.analysis.looks import DECIDED, OPEN, STOPPED, UNDECIDED, Look
from ablate.study.analysis.noise import Noise
from ablate.study.metric_words import best_together
from ablate.study.numbers import (
    apart,
    certain,
    counted,
    decimals,
    listed,
    number,
    probability,
    shortened,
    signed,
)

MOST_COLORS = 7  # distinguishable by the color-blind; the baseline has its own
KINDS = {
    BETTER: "better",
    WORSE: "worse",
    EQUIVALENT: "equivalent",
    NONE: "inconclusive",
    FEW: "too_few_seeds",
}
EXCLUDED = "excluded"


@dataclass(frozen=True)
class Row:
    """An arm: its numbers by seed, and its comparison with the baseline or why there is none.

    why: reasons against a comparison. broken: the rules that forbid it. allowed: rules that it
    breaks and the user has allowed.
    """

    arm: Arm
    values: Mapping[Seed, float]
    summary: Summary
    cost: Cost | None
    comparison: Comparison | None
    why: tuple[str, ...] = ()
    broken: tuple[str, ...] = ()
    allowed: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """One of KINDS, excluded (not compared), or baseline."""
        if self.arm.is_baseline:
            return "baseline"
        return KINDS[self.comparison.verdict.kind] if self.comparison else EXCLUDED

    @property
    def badges(self) -> list[str]:
        """Short marks next to the arm's name: baseline, no effect, an arm with the same runs."""
        badges = ["baseline"] if self.arm.is_baseline else []
        badges += ["no effect"] if self.arm.no_effect else []
        return badges + ([f"= {self.arm.same_as}"] if self.arm.same_as else [])

    @property
    def look(self) -> Look | None:
        return self.comparison.look if self.comparison else None

    @property
    def difference(self) -> float | None:
        return self.comparison.difference if self.comparison else None

    @property
    def verdict(self) -> str:
        """The verdict with its evidence, or why there is none."""
        if self.arm.is_baseline:
            return "baseline"
        if self.comparison is None:
            return f"not compared: {'; '.join(self.why)}"
        return self.comparison.verdict.words()

    @property
    def short_verdict(self) -> str:
        """The verdict without its evidence, which is in other columns of the table."""
        if self.comparison is None:
            return self.verdict
        verdict = self.comparison.verdict
        note = f" (about {verdict.seeds_needed:,} seeds needed)" if verdict.seeds_needed else ""
        if self.kind == "equivalent":  # the column is of the difference
            note = f" (p of equivalence {probability(verdict.p)})"
        look = f" ({verdict.look.words()})" if verdict.look else ""
        allowed = f" [despite: {', '.join(self.allowed)}]" if self.allowed else ""
        return verdict.kind + note + look + allowed


@dataclass(frozen=True)
class Report:
    """A study on one metric. rows: the baseline, then from the best to the worst. decimals: digits
    after the point of the metric's numbers."""

    study: Study
    metric: str
    mode: str
    rows: tuple[Row, ...]
    objections: tuple[Objection, ...]
    warnings: tuple[str, ...]
    decimals: int
    colors: Mapping[str, int]
    claims: tuple[JudgedClaim, ...] = ()
    dropped: tuple[str, ...] = ()  # claims of the first plan that a later one does not have
    blocks: Mapping[str, Report] = field(default_factory=dict)
    examples: tuple[OverExamples, ...] = ()  # on demand
    also: Mapping[str, Report] = field(default_factory=dict)  # of study.extra_metrics, by metric
    noise: Noise | None = None  # None if nothing was compared

    @property
    def baseline(self) -> Row:
        return next(row for row in self.rows if row.arm.is_baseline)

    @cached_property
    def crossed(self) -> Effects | None:
        """The effects of crossed factors; None if none are crossed."""
        return crossed_effects(self.study, self.metric, self.mode, self.objections)

    @cached_property
    def ladder(self) -> Ladder | None:
        return ladder(self.study, self.metric, self.mode)

    @cached_property
    def digits(self) -> int:
        """Digits of differences: those of the metric, or so many that the interval of one that is
        shown, which may be far smaller than the spread of seeds, does not begin at zero."""
        shown = [row.comparison for row in self.shown if row.comparison]
        reaches = [(each.difference, each.interval) for each in shown]
        ends = [end for mean, of in reaches for end in ((of.low, of.high) if of else (mean,))]
        return max((apart([0.0, end], self.decimals) for end in ends), default=self.decimals)

    @cached_property
    def measures(self) -> dict[str, dict[str, Summary]]:
        """Other metrics of the same split, by arm; without parts of a metric, as by length or
        class, without study.extra_metrics, and only one of those that are best together."""
        split = (derived.measured(self.metric) or "val/").partition("/")[0]
        names: list[str] = []
        for name in sorted(self.study.metrics, key=lambda name: not name.endswith("/loss")):
            known = any(best_together(name, shown) for shown in (self.metric, *self.also, *names))
            if name.startswith(f"{split}/") and name.count("/") == 1 and not known:
                names.append(name)
        return {
            name: {
                row.arm.name: summary([*self.study.by_seed(row.arm.name, name).values()])
                for row in self.rows
            }
            for name in names
        }

    def text(self, value: float | None) -> str:
        """Format a number of the metric."""
        return number(value, self.decimals)

    @property
    def others(self) -> list[Row]:
        return [row for row in self.rows if not row.arm.is_baseline]

    @property
    def shown(self) -> list[Row]:
        """The arms that are shown to differ from the baseline."""
        return [row for row in self.rows if row.kind in ("better", "worse")]

    def going(self) -> tuple[int, set[tuple[str | None, str]]]:
        """How many looks there have been, and the arms with which open verdicts and claims go on,
        each with its block, None: all; no arms if all are decided or stopped."""
        found: list[tuple[Look | None, list[tuple[str | None, str]]]] = [
            (row.look, [(None, row.arm.name)]) for row in self.compared
        ]
        for entry in self.claims:
            of_claim = [
                (term.block, term.arm or self.study.planned_baseline)
                for term in entry.settled.claim.terms
            ]
            found.append((entry.settled.look, of_claim))
        going = [(look.number, needed) for look, needed in found if look and look.outcome == OPEN]
        arms = {arm for _, needed in going for arm in needed}
        return max((number for number, _ in going), default=0), arms

    @property
    def noises(self) -> dict[str, Noise]:
        """The noise of each metric that was compared."""
        reports = {self.metric: self, **self.also}
        return {metric: each.noise for metric, each in reports.items() if each.noise}

    @property
    def compared(self) -> list[Row]:
        return [row for row in self.rows if row.comparison]

    def color(self, arm: str) -> str:
        """The class of its color in the page: base, c1, c2, ... or rest."""
        if arm == self.study.baseline.name:
            return "base"
        return f"c{self.colors[arm]}" if arm in self.colors else "rest"

    def short_label(self, arm: str) -> str:
        """The label of an arm in charts."""
        return shortened(self.labels[arm], 24)

    def largest(self, count: int) -> list[Row]:
        """The compared arms with the largest differences, from the best to the worst."""
        largest = sorted(self.compared, key=lambda row: -abs(row.difference or 0.0))[:count]
        return [row for row in self.compared if row in largest]

    @property
    def chosen(self) -> dict[str, str]:
        """The choices of this report that replace the plan's: metric, mode, baseline."""
        study = self.study
        own = self.metric == study.metric
        choices = {
            "metric": "" if own else self.metric,
            "mode": self.mode if own and self.mode != study.mode else "",
            "baseline": study.baseline.name * (study.baseline.name != study.planned_baseline),
        }
        return {option: value for option, value in choices.items() if value}

    def named(self, file: str) -> str:
        """Return the name of a file of this report, such as report-val_perplexity.html: other than
        that of the plan's report."""
        stem, dot, kind = file.partition(".")
        parts = (re.sub(r"[^\w.=+-]+", "_", value)[:80] for value in self.chosen.values())
        return "-".join([stem, *parts]) + dot + kind

    @cached_property
    def labels(self) -> dict[str, str]:
        """Arm -> its name in sentences and charts: only the option if all arms change one factor,
        unless that is a bare value such as 2 or null, and only the last part of each key if that is
        enough to distinguish factors.
        """
        factors = {factor for row in self.rows for factor in row.arm.changes}
        ends = {factor: factor.rpartition(".")[2] for factor in factors}
        if len(set(ends.values())) < len(factors):
            ends = {factor: factor for factor in factors}
        labels = {}
        for row in self.rows:
            changes = row.arm.changes.items()
            label = " ".join(str(o) if len(factors) == 1 else f"{ends[f]}={o}" for f, o in changes)
            # The baseline of a factor given as a list is named by it: model.attention=dot.
            label = label or row.arm.name.removeprefix(f"{''.join(factors)}=")
            if _bare(label) and len(factors) == 1:
                label = f"{''.join(ends.values())}={label}"
            labels[row.arm.name] = label
        return labels

    @cached_property
    def remarks(self) -> list[str]:
        """Sentences on results that may mislead."""
        return [*remarks(self)]


def _bare(label: str) -> bool:
    """Whether it is a value that means nothing without its key: a number, null, true or false."""
    return _number(label) is not None or label.lower() in ("null", "true", "false")


def _number(option: object) -> float | None:
    try:
        return float(str(option))
    except ValueError:
        return None


def assemble(
    study: Study, metric: str | None = None, mode: str | None = None, allow: Collection[str] = ()
) -> Report:
    """Compare every arm on the metric. UserError for a metric that no run has."""
    name = metric or study.metric
    if metric is not None:
        derived.require_known(metric)
        if study.metrics and derived.measured(metric) not in (None, *study.metrics):
            raise UserError(
                f"--metric {metric}: not measured in {study.name}{suggest(metric, study.metrics)}"
                f" (available: {', '.join(study.metrics)})"
            )
    better = mode or (study.mode if name == study.metric else derived.mode(name))
    refusals = tuple(objections(study, name, allow))
    compared = _compare(study, name, better, refusals, allow)
    planned = [_row(study, arm, name, compared, refusals) for arm in study.arms]
    rows = tuple(sorted(planned, key=_rank))
    spreads = [c.sd for c in compared.summaries.values()] if compared else []
    effects = {row.arm.name: row.difference or 0.0 for row in rows if row.comparison}
    claims, dropped = judged_claims(study, allow)
    return Report(
        study=study,
        metric=name,
        mode=better,
        rows=rows,
        objections=refusals,
        warnings=compared.warnings if compared else (),
        noise=compared.noise if compared else None,
        decimals=decimals([v for row in rows for v in row.values.values()], spreads),
        colors=colored(study, effects),
        claims=claims,
        dropped=tuple(dropped),
        also={
            other: assemble(study, other, None, allow)
            for other in study.plan.get("also") or ()
            if metric is None and other != name
        },
        blocks={block: assemble(part, name, better, allow) for block, part in study.blocks.items()},
    )


def colored(study: Study, effects: dict[str, float]) -> dict[str, int]:
    """Map arms to colors 1, 2, ...: all arms if few, else those with the largest effects."""
    names = [arm.name for arm in study.others if arm.same_as is None]
    if len(names) > MOST_COLORS:
        largest = sorted(names, key=lambda name: -abs(effects.get(name, 0.0)))[:MOST_COLORS]
        names = [name for name in names if name in largest]
    return {name: number for number, name in enumerate(names, 1)}


def _compare(
    study: Study, metric: str, mode: str, refusals: Collection[Objection], allow: Collection[str]
) -> Comparisons | None:
    """Compare the arms without objections, each once; None if the baseline has no value."""
    baseline = study.baseline.name
    if not study.by_seed(baseline, metric):
        return None
    refused = {objection.arm for objection in refusals if not objection.allowed}
    names = [arm.name for arm in study.others if arm.name not in refused and arm.same_as is None]
    found = {name: study.by_seed(name, metric) for name in (baseline, *names)}
    values = {arm: {seed: v.get(seed) for seed in study.planned(arm)} for arm, v in found.items()}
    margin: Any = study.plan.get("margin") if metric == study.metric else None
    return compare(
        values,
        baseline=baseline,
        mode=mode,
        margin=margin,
        allow_missing="seeds" in allow,
        known=known.pooled(known.files(study.plan), metric),
        looks=study.looks,
    )


def _rank(row: Row) -> tuple[int, float]:
    """Put the baseline first, then the arms from the best to the worst, then those without a
    comparison, in the order of the plan."""
    if row.comparison is None:
        return (0, 0.0) if row.arm.is_baseline else (2, 0.0)
    return 1, row.comparison.verdict.loss


def _row(
    study: Study,
    arm: Arm,
    metric: str,
    compared: Comparisons | None,
    refusals: Collection[Objection],
) -> Row:
    of_arm = [objection for objection in refusals if objection.arm == arm.name]
    comparison = compared.of(arm.same_as or arm.name) if compared else None
    why = [objection.reason for objection in of_arm if not objection.allowed]
    if arm.same_as == study.baseline.name:
        why = ["same runs as the baseline"]
    if comparison is None and not why and not arm.is_baseline:
        every = " in every block," if study.blocks else ""
        why = [f"no seed has {metric}{every} for both the arm and the baseline"]
    return Row(
        arm=arm,
        values=study.values(arm.name, metric),
        summary=summary([*study.by_seed(arm.name, metric).values()]),
        cost=cost_of(study, arm.name, metric),
        comparison=None if why else comparison,
        why=tuple(why),
        broken=tuple(objection.rule for objection in of_arm if not objection.allowed),
        allowed=tuple(objection.rule for objection in of_arm if objection.allowed),
    )


# Outcomes of a look, before the number of seeds.
OUTCOMES = {
    DECIDED: "decided with",
    STOPPED: "stopped, as unlikely to be shown, with",
    UNDECIDED: "undecided with",
    OPEN: "not yet decided with",
}


def remarks(report: Report) -> Iterator[str]:
    parts = (allowed, cautions, choices, looks, small, never, unsettled, undertrained, at_edges)
    return chain.from_iterable(part(report) for part in parts)


def allowed(report: Report) -> Iterator[str]:
    """Broken rules that the user allowed."""
    by_rule: dict[str, list[str]] = {}
    for each in report.objections:
        if each.allowed:
            by_rule.setdefault(each.rule, []).append(f"{each.arm} ({each.reason})")
    for rule, arms in by_rule.items():
        yield f"Included despite the rule '{rule}': {listed(arms)}."


def cautions(report: Report) -> Iterator[str]:
    """Results that may mislead (`caution` in result.json)."""
    by_caution: dict[str, list[str]] = {}
    for row in report.rows:
        runs = report.study.runs_of(row.arm.name).values()
        for caution in sorted({each for run in runs for each in _cautions(run.result)}):
            by_caution.setdefault(caution, []).append(report.labels[row.arm.name])
    for caution, arms in by_caution.items():
        yield f"{listed(arms)}: {caution}."


def _cautions(result: Mapping[str, Any]) -> Iterator[str]:
    if "caution" in result:
        yield str(result["caution"])
    if chosen := result.get("chosen_on"):
        yield (
            f"the best weights were chosen on {chosen['examples']:,} of {chosen['of']:,} validation"
            " examples (trainer.val_examples) and then evaluated on all"
        )
    for name, why in (result.get("not_evaluated") or {}).items():
        yield f"not evaluated under evaluate.{name}: {why}"


def choices(report: Report) -> Iterator[str]:
    """The metric that chose the weights, and choices of the user, late or for this report."""
    study, metric = report.study, report.metric
    chosen = (run.result.get("metric") or {} for run in study.runs if run.finished)
    by = sorted({of["name"] for of in chosen if "name" in of})
    by = [name for name in by if not best_together(metric, name)]
    if metric.startswith("val/") and by:
        yield (
            f"{metric} is evaluated at the checkpoint with the best {listed(by)}; it may"
            f" not be the best {metric} of the run."
        )
    if study.plan.get("margin") and metric != study.metric:
        yield (
            f"study.margin applies to {study.metric}, so equivalence is not tested for {metric}."
        )
    for key, option in (("noise", "noise"), ("looks", "seeds_up_to")):
        if (study.plan.get(key) or {}).get("after"):
            yield f"study.{option} was set, or changed, after the first run."
    if "baseline" in report.chosen:
        yield (
            f"Compared with {study.baseline.name}, which was chosen for this report; the"
            f" baseline of the plan is {study.planned_baseline}."
        )


def looks(report: Report) -> Iterator[str]:
    """At which look each arm was tested last."""
    by_look: dict[str, list[str]] = {}
    found = [(look, report.labels[row.arm.name]) for row in report.compared if (look := row.look)]
    for look, name in sorted(found, key=lambda of: of[0].seeds):
        by_look.setdefault(f"{OUTCOMES[look.outcome]} {look.seeds} seeds", []).append(name)
    if by_look:
        numbers = listed(map(str, report.study.looks))
        parts = "; ".join(f"{words}: {listed(arms)}" for words, arms in by_look.items())
        yield f"Arms are tested at {numbers} seeds (study.seeds_up_to); {parts}."


def small(report: Report) -> Iterator[str]:
    """Verdicts of arms that differ by less than the baseline does between seeds."""
    sd = report.baseline.summary.sd or 0.0
    arms = [
        f"{report.labels[row.arm.name]} ({row.kind} by {certain(abs(row.difference or 0.0))})"
        for row in report.shown
        if abs(row.difference or 0.0) < sd
    ]
    if arms:
        yield (
            f"Smaller than the baseline's standard deviation between seeds, {certain(sd)}:"
            f" {listed(arms)}. The choice of the seed changes the result by more."
        )


def never(report: Report) -> Iterator[str]:
    """Runs that did not reach the value of the metric."""
    late = []
    for row in report.rows:
        runs = report.study.runs_of(row.arm.name).values()
        count = sum(derived.censored(run, report.metric) for run in runs if run.finished)
        if count:
            late.append(f"{report.labels[row.arm.name]} ({count} of {len(row.values)} runs)")
    if late:
        reason = "Target value not reached; recorded as the last step (a lower bound)"
        yield f"{reason}: {listed(late)}."


SINCE = 0.75  # share of the steps after which changes are checked: the last quarter
MOVED = 0.25  # share of the difference at the end above which a change is reported


def unsettled(report: Report) -> Iterator[str]:
    """Better or worse arms whose difference is still changing."""
    study = report.study
    column = curve_column(study, report.metric)
    baseline = curve_of(study, study.baseline.name, column)
    of_baseline = dict(zip(baseline.steps, baseline.means, strict=True))
    arms = []
    for row in report.shown:
        curve = curve_of(study, row.arm.name, column)
        both = zip(curve.steps, curve.means, strict=True)
        points = [(step, mean - of_baseline[step]) for step, mean in both if step in of_baseline]
        before = [point for point in points if point[0] <= SINCE * points[-1][0]]
        if before and abs(points[-1][1] - before[-1][1]) > MOVED * abs(points[-1][1]):
            ends = (before[-1], points[-1])
            digits = apart([value for _, value in ends], report.decimals)
            way = " to ".join(f"{signed(value, digits)} at step {step:,}" for step, value in ends)
            arms.append(f"{report.labels[row.arm.name]} (from {way})")
    if arms:
        yield (
            "Still changing in the last quarter of training, so more steps may change the result:"
            f" {listed(arms)}."
        )


STILL = 0.1  # share of the fall of the training loss above which its last quarter is reported
HARDLY = 0.05  # share of the training loss below which its whole fall is reported


def undertrained(report: Report) -> Iterator[str]:
    """Arms whose training loss was still falling, has hardly fallen, or was logged too seldom to
    judge. A loss below zero, as that of task=rlhf, is a surrogate and not judged."""
    falling, flat = [], []
    seldom: dict[str, list[str]] = {}
    judged = [row for row in report.rows if row.arm.is_baseline or row.comparison]
    for row in judged:
        curve, name = curve_of(report.study, row.arm.name, TRAINING), report.labels[row.arm.name]
        length = max([*curve.steps, 1])
        points = [(s / length, m) for s, m in zip(curve.steps, curve.means, strict=True)]
        before = [mean for share, mean in points if 0.5 <= share <= SINCE]
        last = [mean for share, mean in points if share > SINCE]
        surrogate = min(curve.means, default=0.0) < 0  # its value is meaningless
        if surrogate or (not points and report.study.source):
            continue
        if not before or not last:
            logged = f", at step {curve.steps[0]:,}" if len(points) == 1 else ""
            seldom.setdefault(f"{counted(len(points), 'value')}{logged}", []).append(name)
            continue
        first, end = curve.means[0], fmean(last)
        if first - end < HARDLY * abs(first):
            flat.append(
                f"{name} ({certain(first)} at step {curve.steps[0]:,}, {certain(end)} at the end)"
            )
        elif fmean(before) - end > STILL * (first - end):
            falling.append(name)

    def named(names: list[str]) -> str:
        return "every arm" if len(names) == len(judged) > 1 else listed(names)

    if falling:
        yield (
            f"Still falling: the training loss of {named(falling)} fell by more than {STILL:.0%} of"
            " its total decrease in the last quarter of training, so more steps may change the"
            " result."
        )
    if seldom:
        arms = "; ".join(f"{named(names)} ({how})" for how, names in seldom.items())
        yield (
            "Too short to judge: too few values of the training loss were logged to tell whether it"
            f" was still falling, so more steps may change the result: {arms}."
        )
    if flat:
        yield (
            f"Barely trained: the training loss of {listed(flat)} fell by less than {HARDLY:.0%};"
            " verdicts are not informative."
        )


GRID = 3  # values of a factor from which its best one is checked: of two, each is at an edge


def at_edges(report: Report) -> Iterator[str]:
    """Numbers, of a factor or of study.tune, whose best value is the smallest or largest that was
    tried. Values of a factor are compared among arms that are equal in all other factors."""
    own: Mapping[str, Any] = report.study.plan.get("own", {})
    best_of = min if report.mode == "min" else max
    grids: dict[tuple[str, str], dict[float, float]] = {}
    for row in report.rows:
        options = {**own, **row.arm.changes}
        for factor, option in options.items():
            value, mean = _number(option), row.summary.mean
            if value is not None and math.isfinite(value) and mean is not None:
                rest = (f"{f}={o}" for f, o in options.items() if f != factor and o != own.get(f))
                grids.setdefault((factor, " ".join(rest)), {})[value] = mean
    found = []
    for (factor, others), means in grids.items():
        best = best_of(means, key=lambda value: means[value])
        if len(means) >= GRID and (end := _edge(best, means)):
            place = f" with {others}" if others else ""
            found.append(f"{factor}={best:g}{place} ({end} of {len(means)})")
    for row in report.rows:
        for key, value in row.arm.tuned.items():
            grid = [_number(trial["point"].get(key)) for trial in row.arm.tuning]
            tried = {number for number in grid if number is not None}
            if len(tried) > 1 and (end := _edge(_number(value), tried)):
                name = report.labels[row.arm.name]
                found.append(f"{key}={value} of {name} ({end} of {len(tried)} tried)")
    if found:
        yield f"Best at the edge of a grid, so a value beyond it may be better: {listed(found)}."


def _edge(best: float | None, tried: Iterable[float]) -> str:
    """ "" of a value inside the grid."""
    return "smallest" if best == min(tried) else "largest" if best == max(tried) else ""
