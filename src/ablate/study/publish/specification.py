"""The content of wandb.json: a study for W&B, as plain values."""

import json
import unicodedata
from hashlib import sha256
from typing import Any

from ablate.errors import UserError
from ablate.logger.wandb import LONGEST_NAME, TRAIN, fitted
from ablate.study.analysis.collect import Study
from ablate.study.analysis.curves import curve_column
from ablate.study.analysis.offline import logger_of
from ablate.study.analysis.rows import Report
from ablate.study.metric_words import metric_words
from ablate.study.report import WrittenReport
from ablate.study.report.inline import COLORS
from ablate.study.report.render import markdown
from ablate.study.report.to_json import arm_content

BASELINE = "#808080"  # visible on white and on black
# Columns of the table, and their keys in report.json.
COLUMNS = {
    "arm": "name", "seeds": "n", "mean": "mean", "sd": "sd", "difference": "difference",
    "low": "low", "high": "high", "effect": "effect_size", "p_holm": "p",
    "verdict": "verdict_text", "parameters": "parameters", "flops_per_step": "flops_per_step",
}  # fmt: skip


def specification(written: WrittenReport) -> dict[str, Any]:
    """Return the content. Raises UserError if no run of the study was logged to W&B."""
    report = written.report
    study = report.study
    return {
        **_destination(study),
        "study": study.name,
        "run": _run(written),
        "summaries": _summaries(report),
        "panels": _panels(report),
        "views": _views(report),
        "report": {
            "title": title(f"{study.name}: ablation report"),
            # Without its title and its figures, which W&B shows by itself.
            "text": markdown(written.content).split("\n\n", 1)[1],
        },
    }


def difference(metric: str) -> str:
    """Return the summary key of a run's difference from the baseline's run of the same seed."""
    return f"difference/{metric}"


def title(name: str) -> str:
    """Make a name that W&B accepts for a view: not long, without symbols such as "+" and "="."""
    return fitted(
        "".join("-" if unicodedata.category(c)[0] == "S" else c for c in name), LONGEST_NAME
    )


def _destination(study: Study) -> dict[str, Any]:
    """Return project, entity and job type of the first run that was logged to W&B."""
    if (logger := logger_of(study)) is None:
        raise UserError(
            f"--wandb: no run of {study.name} was logged to W&B; the same study with logger=wandb"
            " and study.rerun=all runs it again"
        )
    job_type = logger["job_type"] or TRAIN
    return {"project": logger["project"], "entity": logger["entity"], "job_type": job_type}


def _run(written: WrittenReport) -> dict[str, Any]:
    """Describe the run of the report, always the same one: table, figures, files."""
    study = written.report.study
    names = [str(path.relative_to(study.folder)) for path in written.files]
    rows = []
    for arm in map(arm_content, written.report.rows):
        low, high = arm["interval"] or (None, None)
        rows.append([(arm | {"low": low, "high": high})[key] for key in COLUMNS.values()])
    question = [study.name, (study.plan.get("baseline") or {}).get("config")]
    state = sha256(json.dumps(rows).encode())
    for path in written.files:
        state.update(path.read_bytes())
    return {
        "id": f"report-{sha256(json.dumps(question, sort_keys=True).encode()).hexdigest()[:12]}",
        "name": f"{study.name} report",
        "state": state.hexdigest(),
        "table": {"columns": list(COLUMNS), "rows": rows},
        "figures": [name for name in names if name.endswith(".png")],
        "files": names,
    }


def _summaries(report: Report) -> dict[str, dict[str, float | None]]:
    """Map each run id to values of its summary; None if it must have no such key."""
    study, key = report.study, difference(report.metric)
    summaries: dict[str, dict[str, float | None]] = {run.run_id: {key: None} for run in study.runs}
    for row in report.rows:
        runs = study.runs_of(row.arm.name)
        if row.arm.is_baseline or row.comparison:
            base = report.baseline.values
            summaries |= {
                runs[seed].run_id: {key: value - base[seed]}
                for seed, value in row.values.items()
                if seed in base
            }
    return summaries


def _panels(report: Report) -> list[dict[str, str]]:
    """Describe the panels of the views and of W&B's report."""
    words = metric_words(report.metric)
    column = curve_column(report.study, report.metric)
    return [
        {"kind": "line", "metric": column, "title": f"{metric_words(column)} by step"},
        {"kind": "bar", "metric": report.metric, "title": words},
        {
            "kind": "bar",
            "metric": difference(report.metric),
            "title": f"{words}: difference from the baseline's run of the same seed",
        },
    ]


def _views(report: Report) -> dict[str, dict[str, Any]]:
    """Describe the view of a line per arm, in the report's colors, and that of every run, compared
    with the baseline's first finished run. Both have the same columns, the best first."""
    study, baseline, key = report.study, report.baseline.arm.name, difference(report.metric)
    base = [run.run_id for run in study.runs_of(baseline).values() if run.finished]
    colors = {arm: COLORS[index - 1] for arm, index in report.colors.items()}
    table = {
        "columns": [
            "config:ablate.value.arm",
            "config:ablate.value.seed",
            f"summary:{report.metric}",
            f"summary:{key}",
            "config:ablate.value.parameters",
        ],
        "order_by": key,
        "ascending": report.mode == "min",
    }
    return {
        "arms": {
            "name": title(f"{study.name}: arms"),
            "group_by": "ablate.arm",
            "colors": {baseline: BASELINE, **colors},
            "lines": len(report.rows),
            "baseline_run": None,
            **table,
        },
        "runs": {
            "name": title(f"{study.name}: runs against the baseline"),
            "group_by": None,
            "colors": dict.fromkeys(base, BASELINE),
            "lines": len(study.runs),
            "baseline_run": next(iter(base), None),
            **table,
        },
    }
