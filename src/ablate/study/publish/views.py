"""Make the views and the report at W&B, with wandb-workspaces."""

import unicodedata
from typing import Any, NamedTuple

import wandb_workspaces.reports.v2 as wr
import wandb_workspaces.workspaces as ws

from ablate.logger.wandb import LONGEST_NAME, fitted
from ablate.study.analysis.curves import curve_column
from ablate.study.analysis.rows import Report
from ablate.study.metric_words import metric_words
from ablate.study.report import WrittenReport
from ablate.study.report.inline import COLORS
from ablate.study.report.render import markdown

SECTION = "Ablation"
STEP = "trainer/global_step"
ARM = "ablate.arm"  # of the config of a run
MOST_LINES = 100  # in one chart
BASELINE = "#808080"  # visible on white and on black


class Place(NamedTuple):
    """The project, and the job type of the study's runs."""

    entity: str
    project: str
    job_type: str


def difference(metric: str) -> str:
    """Return the summary key of a run's difference from the baseline's run of the same seed."""
    return f"difference/{metric}"


def title(name: str) -> str:
    """Make a name that W&B accepts for a view: not long, without symbols such as "+" and "="."""
    return fitted(
        "".join("-" if unicodedata.category(c)[0] == "S" else c for c in name), LONGEST_NAME
    )


def save_view(report: Report, place: Place, *, grouped: bool, known: str | None) -> str:
    """Make a view, or update the `known` one; return its address. grouped: a line per arm, in the
    report's colors; else of every run, compared with the baseline's first finished run.

    The sections and settings of a known view that are not ours are kept.
    """
    study, key = report.study, difference(report.metric)
    base = [r.run_id for r in study.runs_of(report.baseline.arm.name).values() if r.finished]
    shown = _known(known) or ws.Workspace(
        entity=place.entity, project=place.project, auto_generate_panels=True
    )
    ours = ws.Section(SECTION, panels=_panels(report, grouped=grouped), is_open=True)
    shown.name = title(f"{study.name}: {'arms' if grouped else 'runs against the baseline'}")
    shown.sections = [ours, *(section for section in shown.sections if section.name != SECTION)]
    shown.settings.max_runs = _lines(report, grouped=grouped)
    shown.runset_settings = ws.RunsetSettings(
        filters=_filters(report, place),
        groupby=[ws.Config(ARM)] if grouped else [],
        order=[ws.Ordering(ws.Summary(key), ascending=report.mode == "min")],
        group_colors=_colors(report) if grouped else {},
        run_settings={} if grouped else {run: ws.RunSettings(BASELINE) for run in base},
        pinned_columns=[
            "config:ablate.value.arm",
            "config:ablate.value.seed",
            f"summary:{report.metric}",
            f"summary:{key}",
            "config:ablate.value.parameters",
        ],
        baseline_run=None if grouped else next(iter(base), None),
    )
    return str(shown.save().url)


def _known(url: str | None) -> ws.Workspace | None:
    try:
        return ws.Workspace.from_url(url) if url else None
    except ValueError as error:
        if "not found" in str(error):  # it was removed
            return None
        raise


def save_report(
    written: WrittenReport, place: Place, *, table: str, run: str, known: str | None
) -> tuple[str, str]:
    """Make W&B's report, or rewrite the `known` one; return its address and its id. table, run:
    the key of the table, and the run that has it and the figures."""
    text = markdown(written.content).split("\n\n", 1)[1]  # W&B shows title and figures by itself
    report = wr.Report(
        place.project,
        entity=place.entity,
        title=title(f"{written.report.study.name}: ablation report"),
        blocks=[
            wr.MarkdownBlock(text),
            _grid(written.report, place),
            _figures(written, place, table, run),
        ],
        width="fluid",
    )
    report.id = known or ""
    try:
        report.save()
    except Exception:
        if not known:
            raise
        report.id = ""  # it was removed
        report.save()
    return str(report.url), report.id


def _grid(report: Report, place: Place) -> wr.PanelGrid:
    arm, by = wr.Config(ARM), wr.SummaryMetric(difference(report.metric))
    colors: dict[Any, Any] = {
        wr.RunsetGroup("arms", (wr.RunsetGroupKey(arm, name),)): color
        for name, color in _colors(report).items()
    }
    runs = wr.Runset(
        place.entity,
        place.project,
        "arms",
        filters=_filters(report, place),
        groupby=[f"config.{ARM}"],
        order=[wr.OrderBy(by, ascending=report.mode == "min")],
    )
    panels = _panels(report, grouped=True)
    return wr.PanelGrid(runsets=[runs], panels=panels, custom_run_colors=colors)


def _figures(written: WrittenReport, place: Place, table: str, run: str) -> wr.PanelGrid:
    keys = [f"report/{path.stem}" for path in written.files if path.suffix == ".png"]
    runs = wr.Runset(
        place.entity, place.project, "report", filters=f'Metric("ID") == {_literal(run)}'
    )
    wide = wr.Layout(w=24, h=8)
    return wr.PanelGrid(
        runsets=[runs],
        panels=[
            wr.WeavePanelSummaryTable(table_name=table, layout=wide),
            wr.MediaBrowser(media_keys=keys, num_columns=2, layout=wr.Layout(y=8, w=24, h=14)),
        ],
    )


def _lines(report: Report, *, grouped: bool) -> int:
    return min(len(report.rows if grouped else report.study.runs), MOST_LINES)


def _colors(report: Report) -> dict[Any, Any]:
    colors = {arm: COLORS[index - 1] for arm, index in report.colors.items()}
    return {report.baseline.arm.name: BASELINE, **colors}


def _panels(report: Report, *, grouped: bool) -> list[Any]:
    """Make panels of mean and standard error over the seeds of an arm, or of every single run."""
    together: dict[str, Any] = {"max_runs_to_show": _lines(report, grouped=grouped)}
    if grouped:
        arm = wr.Config(ARM)
        together |= {"groupby": arm, "groupby_aggfunc": "mean", "groupby_rangefunc": "stderr"}
    words, column = metric_words(report.metric), curve_column(report.study, report.metric)
    bars = {
        report.metric: words,
        difference(report.metric): f"{words}: difference from the baseline's run of the same seed",
    }
    return [
        wr.LinePlot(f"{metric_words(column)} by step", x=STEP, y=[column], **together),
        *(wr.BarPlot(name, metrics=[metric], **together) for metric, name in bars.items()),
    ]


def _filters(report: Report, place: Place) -> str:
    """Select the finished runs that count: neither those of the tuning nor the report's own."""
    conditions = {  # the first is W&B's path of config["ablate"]["study"]
        'Config("ablate.value.study")': report.study.name,
        'Metric("JobType")': place.job_type,
        'Metric("State")': "finished",
    }
    return " and ".join(f"{key} == {_literal(value)}" for key, value in conditions.items())


def _literal(text: str) -> str:
    """Quote and escape a text: wandb-workspaces takes "=" for an operator even inside quotes."""
    return (
        '"' + "".join(c if c.isalnum() and c.isascii() else f"\\U{ord(c):08x}" for c in text) + '"'
    )
