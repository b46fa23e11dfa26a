"""The content of a report, as texts: the page, Markdown, LaTeX and the terminal only arrange it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from ablate.study.analysis.collect import Seed
from ablate.study.analysis.crossed import TESTS, in_short, ranked
from ablate.study.analysis.effects import Effects
from ablate.study.analysis.rows import Report, Row
from ablate.study.metric_words import direction
from ablate.study.numbers import NOTHING, amount, duration, interval, number, probability, signed
from ablate.study.report import runs, sentences, tables
from ablate.study.report.chart_data import Points
from ablate.study.report.verdict_words import VERDICT_WORDS

LISTED = 20  # seeds of an arm that a tip lists


@dataclass(frozen=True)
class TableCell:
    """A value in words. value: to sort by; small: details below it; tip: its explanation; link: to
    the folder of a run, page: to that at W&B."""

    text: str
    value: float | None = None
    small: str = ""
    tip: str | None = None
    link: str | None = None
    page: str | None = None


@dataclass(frozen=True)
class ArmLine:
    """An arm in the table. kind: of its verdict; color: class of its color in the page; verdict:
    without the numbers of other columns."""

    name: str
    label: str
    kind: str
    color: str
    badges: Sequence[str]
    n: int
    metric: TableCell
    difference: TableCell
    relative: str
    p: TableCell
    size: TableCell
    cost: TableCell
    verdict: str
    explained: TableCell
    allowed: Sequence[str]
    runs: Sequence[TableCell]

    @property
    def mean(self) -> str:
        """Mean and standard deviation."""
        return " ".join(filter(None, [self.metric.text, self.metric.small]))

    @property
    def interval(self) -> str:
        """The difference with its interval, as "+0.012 (+0.005 to +0.019)"."""
        small = self.difference.small
        return self.difference.text + (f" ({small})" if small else "")

    @property
    def marks(self) -> str:
        return "".join(f" ({badge})" for badge in self.badges if badge != self.name)


def content(report: Report, points: Points, crossed: Effects | str | None) -> dict[str, Any]:
    """The texts of a report by name, as in the templates. crossed: effects of crossed factors, or
    why there are none."""
    study, commands = report.study, sentences.commands(report)
    effects = crossed if isinstance(crossed, Effects) else None
    main, pairs = ranked(effects) if effects else ([], [])
    hindered = [f"Effects are {crossed}"] if isinstance(crossed, str) else []
    rules = sorted({objection.rule for objection in report.objections if not objection.allowed})
    return {
        "name": study.name,
        "purpose": sentences.purpose(report),
        "question": sentences.plan_sentence(report),
        "metric": report.metric,
        "direction": direction(report.mode),
        "metric_name": sentences.metric_name(report),
        "is_foreign": bool(study.source),  # runs of other programs
        "claims": [*tables.claims(report)],
        "shown_effects": in_short(report, crossed),
        "results": sentences.answers(report),  # kind of verdict, heading, arms
        "reference": sentences.reference(report),
        "remarks": report.remarks,
        "certainty": sentences.certainty(report),
        "curves": sentences.curve_words(report, points),
        "arms": [_line(row, report) for row in report.rows],
        "seeds": study.seeds,
        "again": f"{commands[-1]} --allow {' '.join(rules)}" if rules else "",
        "blocks": [*tables.blocks(report)],
        "block_pages": [
            (block, f"{part.study.folder.name}/report.html")
            for block, part in (report.blocks.items() if not study.source else ())
        ],
        "metrics": [*tables.metrics(report)],
        "is_crossed": crossed is not None,
        "main_effects": [effect.words() for effect in main],
        "interactions": [effect.words() for effect in pairs],
        "effect_warnings": [*effects.warnings] if effects else hindered,
        "effects_note": TESTS if effects else "",
        "plan": sentences.plan_lines(report),
        "commands": commands,
        "details": [*tables.details(report)],
    }


def _line(row: Row, report: Report) -> ArmLine:
    name, summary, digits = row.arm.name, row.summary, report.decimals
    color = report.colors.get(name)
    first = islice(row.values.items(), LISTED)
    seeds = [f"seed {seed}: {number(value, digits)}" for seed, value in first]
    tip = "\n".join(seeds or ["no finished run"])
    spread = "" if summary.sd is None else f"± {number(summary.sd, digits)}"
    return ArmLine(
        name=name,
        label=report.labels[name],
        kind=row.kind,
        color="base" if row.arm.is_baseline else f"c{color}" if color else "rest",
        badges=row.badges,
        n=summary.n,
        metric=TableCell(number(summary.mean, digits), summary.mean, spread, tip),
        difference=_difference(row, digits),
        relative=sentences.relative(row, report),
        **_statistics(row),
        cost=_cost(row),
        verdict=row.short_verdict,
        explained=TableCell(VERDICT_WORDS[row.kind].page, small=_reason(row), tip=row.verdict),
        allowed=row.allowed,
        runs=[_run(row, seed, report) for seed in report.study.seeds],
    )


def _reason(row: Row) -> str:
    """The remark below a verdict in the page."""
    comparison = row.comparison
    parts = [] if row.arm.is_baseline or comparison else ["; ".join(row.why)]
    if comparison and comparison.look:
        parts.append(comparison.look.words())
    if comparison and row.kind == "inconclusive" and comparison.verdict.seeds_needed:
        parts.append(f"about {comparison.verdict.seeds_needed:,} seeds needed")
    allowed = [f"allowed: {', '.join(row.allowed)}"] if row.allowed else []
    return "; ".join([*allowed, *filter(None, [", ".join(parts)])])


def _difference(row: Row, digits: int) -> TableCell:
    if (comparison := row.comparison) is None:
        return TableCell(NOTHING)
    reach = interval(comparison.interval, digits)
    pairs = zip(comparison.pairs.seeds, comparison.pairs.differences.tolist(), strict=True)
    lines = [
        "arm minus baseline",
        *(f"seed {seed}: {signed(value, digits)}" for seed, value in islice(pairs, LISTED)),
        f"95 % interval, adjusted for the number of arms: {reach}",
    ]
    small = reach if comparison.interval else ""
    return TableCell(signed(row.difference, digits), row.difference, small, "\n".join(lines))


def _statistics(row: Row) -> dict[str, TableCell]:
    """p and effect size."""
    if (comparison := row.comparison) is None:
        return {"p": TableCell(NOTHING), "size": TableCell(NOTHING)}
    error, p = comparison.tests.error, probability(comparison.p)
    t = comparison.difference / error.se if error.se else None
    tip = (
        f"t = {number(t, 2)} with {error.df:.3g} degrees of freedom\nstandard error {error.se:.3g}"
        f"\nafter Holm: {p}"
    )
    size = "mean difference in standard deviations of an arm between its seeds"
    return {
        "p": TableCell(p, comparison.p, tip=tip),
        "size": TableCell(number(comparison.size, 1), comparison.size, tip=size),
    }


def _cost(row: Row) -> TableCell:
    if row.cost is None:
        return TableCell(NOTHING)
    parameters = row.cost.parameters
    tip = f"{parameters:,.0f} parameters" if parameters is not None else "unknown"
    tip += f"\n{amount(row.cost.flops)}FLOP for the training" if row.cost.flops else ""
    return TableCell(amount(parameters), parameters, duration(row.cost.seconds), tip)


def _run(row: Row, seed: Seed, report: Report) -> TableCell:
    if (run := report.study.runs_of(row.arm.name).get(seed)) is None:
        return TableCell(NOTHING)
    value = row.values.get(seed)
    text = run.state if value is None else number(value, report.decimals)
    link = runs.link(report, run.folder) if run.result else None
    return TableCell(text, value, link=link, page=runs.wandb_page(run))
