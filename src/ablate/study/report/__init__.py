"""The report of a study: HTML page, Markdown, LaTeX table, JSON, CSV of all runs, and figures."""

import json
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ablate.errors import UserError
from ablate.run_files import write_text
from ablate.study.analysis import known
from ablate.study.analysis.collect import Run, Study, collect
from ablate.study.analysis.comparable import lines
from ablate.study.analysis.effects import Effects
from ablate.study.analysis.examples import over_examples
from ablate.study.report import figures
from ablate.study.report.crossed import crossed_effects
from ablate.study.report.html import page
from ablate.study.report.machine import machine
from ablate.study.report.points import gather
from ablate.study.report.rows import Report, assemble
from ablate.study.report.tables import latex, markdown, runs_csv

Losses = Callable[[Run], Sequence[float]]
# Written for results of other programs: their folder may already have a runs.csv or figures/.
FOREIGN = ("report.html", "report.json", "table.tex")


@dataclass(frozen=True)
class Written:
    """A report, its files, and one line for each rule that kept arms from comparison."""

    report: Report
    files: tuple[Path, ...]
    refusals: tuple[str, ...]
    crossed: Effects | str | None = None  # effects of crossed factors, or why there are none


def write(
    study_dir: str | Path,
    *,
    allow: Collection[str] = (),
    metric: str | None = None,
    mode: str | None = None,
    baseline: str | None = None,
    losses: Losses | None = None,
) -> Written:
    """Write the files, each atomically; of another metric or baseline next to those of the plan's
    (`Report.named`). baseline: an arm in place of the study's. losses: of the examples of a run,
    for differences over examples. UserError: no study, no finished run, unknown metric or arm."""
    study = collect(study_dir)
    study = study if baseline is None else study.rebased(baseline)
    refuse_unfinished(study)
    report = assemble(study, metric, mode, allow)
    if losses is not None:
        report = replace(report, examples=over_examples(study, losses))
    return write_report(report, allow)


def write_report(report: Report, allow: Collection[str] = ()) -> Written:
    """Write the files of a report, as `write`; of results of other programs only FOREIGN."""
    study = report.study
    points = gather(study, report.metric, report.mode, list(report.colors))
    crossed = crossed_effects(report, allow)
    folder = None if study.source else study.folder / "figures"
    drawn, charts = figures.draw(report, points, crossed, folder)
    paths = [path.relative_to(study.folder).as_posix() for path in drawn]
    named = {
        "report.html": page(report, points, crossed, charts),
        "report.md": markdown(report, crossed, points, paths),
        "table.tex": latex(report),
        "report.json": json.dumps(machine(report, crossed), indent=1, allow_nan=False) + "\n",
    }
    if study.source:
        texts = {file: named[file] for file in FOREIGN}
    else:
        texts = {report.named(file): text for file, text in named.items()}
        texts["runs.csv"] = runs_csv(report)  # of every metric
        if not report.chosen and (found := noise(report)):
            texts[known.NOISE] = json.dumps(found, indent=1, allow_nan=False) + "\n"
    for name, text in texts.items():
        write_text(study.folder / name, text)
    files = (*(study.folder / name for name in texts), *drawn)
    return Written(report, files, tuple(lines(report.objections)), crossed)


def noise(report: Report) -> dict[str, Any] | None:
    """The content of noise.json; None without a residual, and of blocks, since each has its
    own."""
    reports = {report.metric: report, **report.also}
    noises = {metric: each.noise for metric, each in reports.items() if each.noise}
    return None if report.blocks else known.content(report.study.plan, noises)


def refuse_unfinished(study: Study) -> None:
    """Raise UserError if the study has no finished run."""
    if any(run.finished for run in study.runs):
        return
    counts = Counter(run.state for run in study.runs)
    now = ", ".join(f"{count} {state}" for state, count in counts.items()) or "its plan is empty"
    raise UserError(f"{study.folder} has no finished run yet ({now})")
