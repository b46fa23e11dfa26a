"""The report of a study: HTML page, Markdown, LaTeX table, JSON, CSV of all runs, and figures."""

import json
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ablate.errors import UserError
from ablate.run_files import write_text
from ablate.run_files.harness import items
from ablate.study.analysis import known
from ablate.study.analysis.collect import StudyRun, collect
from ablate.study.analysis.examples import over_examples
from ablate.study.analysis.rows import Report, assemble
from ablate.study.report import figures
from ablate.study.report.chart_data import gather
from ablate.study.report.content import content
from ablate.study.report.render import FIGURES, latex, markdown, page
from ablate.study.report.runs import pictures, runs_csv, samples
from ablate.study.report.to_json import to_json

# Written for results of other programs: their folder may already have a runs.csv or figures/.
FOREIGN = ("report.html", "report.json", "table.tex")


@dataclass(frozen=True)
class WrittenReport:
    """A report, its texts and its files."""

    report: Report
    content: dict[str, Any]
    files: tuple[Path, ...]


def write(
    study_dir: str | Path,
    *,
    allow: Collection[str] = (),
    metric: str | None = None,
    mode: str | None = None,
    baseline: str | None = None,
    losses: Callable[[StudyRun], Sequence[float]] | None = None,
) -> WrittenReport:
    """Write the files, each atomically; of another metric or baseline next to those of the plan's
    (`Report.named`). baseline: an arm in place of the study's. losses: of the examples of a run,
    for differences over examples; without it, of the items of lm-evaluation-harness. UserError: no
    study, no finished run, unknown metric or arm."""
    study = collect(study_dir)
    study = study if baseline is None else study.rebased(baseline)
    if not any(run.finished for run in study.runs):
        counts = Counter(run.state for run in study.runs)
        now = ", ".join(f"{count} {state}" for state, count in counts.items())
        raise UserError(f"{study.folder} has no finished run yet ({now or 'its plan is empty'})")
    report = assemble(study, metric, mode, allow)
    if losses is not None:
        report = replace(report, examples=over_examples(study, losses))
    elif all(items(run.folder, report.metric) for run in study.runs if run.finished):
        name = report.metric
        of_items = over_examples(study, lambda run: items(run.folder, name), report.mode)
        report = replace(report, examples=of_items)
    return write_report(report)


def write_report(report: Report) -> WrittenReport:
    """Write the files of a report, as `write`; of results of other programs only FOREIGN."""
    study = report.study
    points = gather(report)
    folder = None if study.source else study.folder / "figures"
    drawn, charts = figures.draw(report, points, folder)
    shown = content(report, points)
    names = {name: f"figures/{report.named(f'{name}.png')}" for name in FIGURES if name in charts}
    in_markdown = {file: FIGURES[name] for name, file in names.items()}
    of_runs = {"pictures": pictures(report), "samples": samples(report)}
    named = {
        "report.html": page(shown, charts=charts, **of_runs),
        "report.md": markdown(shown, in_markdown),
        "table.tex": latex(shown),
        "report.json": json.dumps(to_json(report), indent=1, allow_nan=False) + "\n",
    }
    if study.source:
        texts = {file: named[file] for file in FOREIGN}
    else:
        texts = {report.named(file): text for file, text in named.items()}
        texts["runs.csv"] = runs_csv(study)  # of every metric
        # Each block has its own noise.
        found = None if report.blocks else known.content(study.plan, report.noises)
        if found and not report.chosen:
            texts[known.NOISE] = json.dumps(found, indent=1, allow_nan=False) + "\n"
    for name, text in texts.items():
        write_text(study.folder / name, text)
    files = (*(study.folder / name for name in texts), *drawn)
    return WrittenReport(report, shown, files)
