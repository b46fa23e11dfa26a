"""The content of a report, as texts: the page, Markdown, LaTeX and the terminal only arrange it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ablate.study.analysis.collect import Seed
from ablate.study.analysis.crossed import TESTS, in_short
from ablate.study.analysis.effects import Effects
from ablate.study.analysis.rows import Report, Row
from ablate.study.metric_words import direction
from ablate.study.numbers import NOTHING
from ablate.study.report import runs, sentences, tables
from ablate.study.report.chart_data import Points
from ablate.study.report.columns import COLUMNS, Column, TableCell
from ablate.study.report.sentences import VERDICT_WORDS


@dataclass(frozen=True)
class ArmLine:
    """An arm in the table. color: class of its color in the page; verdict: with its explanation."""

    row: Row
    label: str
    color: str
    cells: Sequence[tuple[Column, TableCell]]
    verdict: TableCell
    runs: Sequence[TableCell]

    @property
    def name(self) -> str:
        return self.row.arm.name

    @property
    def marks(self) -> str:
        return "".join(f" ({badge})" for badge in self.row.badges if badge != self.name)

    def words(self, form: str) -> list[str]:
        """The words of the columns in a format."""
        return [cell.words for column, cell in self.cells if getattr(column, form)]


def content(report: Report, points: Points) -> dict[str, Any]:
    """The texts of a report by name, as in the templates."""
    study, commands = report.study, sentences.commands(report)
    effects = report.crossed or Effects()
    rules = sorted({objection.rule for objection in report.objections if not objection.allowed})
    columns = [column.of(report) for column in COLUMNS]
    return {
        "name": study.name,
        "purpose": sentences.purpose(report),
        "question": sentences.plan_sentence(report),
        "metric": report.metric,
        "direction": direction(report.mode),
        "metric_name": sentences.metric_name(report),
        "is_foreign": bool(study.source),  # runs of other programs
        "claims": [*tables.claims(report)],
        "shown_effects": [*in_short(report), *tables.trends(report)],
        "results": sentences.answers(report),  # kind of verdict, heading, arms
        "reference": sentences.reference(report),
        "remarks": report.remarks,
        "certainty": sentences.certainty(report),
        "curves": sentences.curve_words(report, points),
        "columns": columns,
        "arms": [_line(row, report, columns) for row in report.rows],
        "seeds": study.seeds,
        "again": f"{commands[-1]} --allow {' '.join(rules)}" if rules else "",
        "blocks": [*tables.blocks(report)],
        "block_pages": [
            (block, f"{part.study.folder.name}/report.html")
            for block, part in (report.blocks.items() if not study.source else ())
        ],
        "metrics": [*tables.metrics(report)],
        "is_crossed": report.crossed is not None,
        "main_effects": [effect.words() for effect in effects.main],
        "interactions": [effect.words() for effect in effects.interactions],
        "effect_warnings": effects.warnings,
        "effects_note": TESTS if effects.effects else "",
        "plan": sentences.plan_lines(report),
        "commands": commands,
        "details": [*tables.details(report)],
    }


def _line(row: Row, report: Report, columns: Sequence[Column]) -> ArmLine:
    return ArmLine(
        row,
        report.labels[row.arm.name],
        report.color(row.arm.name),
        cells=[(column, column.cell(row, report)) for column in columns],
        verdict=TableCell(VERDICT_WORDS[row.kind].page, small=_reason(row), tip=row.verdict),
        runs=[_run(row, seed, report) for seed in report.study.seeds],
    )


def _reason(row: Row) -> str:
    """The remark below a verdict in the page."""
    comparison = row.comparison
    parts = [] if row.arm.is_baseline or comparison else ["; ".join(row.why)]
    if row.look:
        parts.append(row.look.words())
    if comparison and row.kind == "inconclusive" and comparison.verdict.seeds_needed:
        parts.append(f"about {comparison.verdict.seeds_needed:,} seeds needed")
    allowed = f"allowed: {', '.join(row.allowed)}" if row.allowed else ""
    return "; ".join(filter(None, [allowed, ", ".join(parts)]))


def _run(row: Row, seed: Seed, report: Report) -> TableCell:
    if (run := report.study.runs_of(row.arm.name).get(seed)) is None:
        return TableCell(NOTHING)
    value = row.values.get(seed)
    text = run.state if value is None else report.text(value)
    link = runs.link(report, run.folder) if run.result else None
    page = runs.W_AND_B.search(str(run.result.get("logged_to")))
    return TableCell(text, value, link=link, page=page[0] if page else None)
