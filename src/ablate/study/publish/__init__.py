"""python -m ablate.report STUDY_DIR --wandb: publish the report at Weights & Biases.

The addresses are written to wandb.json next to the report, so that the same command updates an
earlier upload, or continues it after W&B could not be reached. Each request waits some seconds for
W&B; the first failure ends the command.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from ablate.errors import RunFailed, UserError, first_line
from ablate.logger.wandb import START, TRAIN, has_key, open_run, settings
from ablate.machine.version import install
from ablate.run_files import read_json, write_json
from ablate.study.analysis.offline import logger_of, sync_command
from ablate.study.analysis.rows import Report
from ablate.study.report import WrittenReport
from ablate.study.report.to_json import arm_content

if TYPE_CHECKING:
    import wandb

    from ablate.study.publish.views import Place

ADDRESSES = "wandb.json"
TABLE = "report/table"
AT_ONCE = 500  # runs in one query
# Columns of the table, and their keys in report.json.
COLUMNS = {
    "arm": "name", "seeds": "n", "mean": "mean", "sd": "sd", "difference": "difference",
    "low": "low", "high": "high", "effect": "effect_size", "p_holm": "p",
    "verdict": "verdict_text", "parameters": "parameters", "flops_per_step": "flops_per_step",
}  # fmt: skip


def require_workspaces() -> None:
    """Raise UserError without the package that makes views and reports."""
    if find_spec("wandb_workspaces") is None:
        raise UserError(f"--wandb needs a package: {install('wandb')}")


def publish(written: WrittenReport) -> None:
    """Send a report and print its addresses.

    Raises UserError if no run of the study was logged to W&B, and RunFailed, in one line, if W&B
    does not have everything afterwards.
    """
    study = written.report.study
    if (logger := logger_of(study)) is None:
        raise UserError(
            f"--wandb: no run of {study.name} was logged to W&B; the same study with logger=wandb"
            " and study.rerun=all runs it again"
        )
    path = study.folder / ADDRESSES
    where: dict[str, Any] = (read_json(path) or {}).get("where", {})
    try:
        missing = send(written, logger, where)
    except Exception as error:  # of many kinds; the local report is complete
        raise RunFailed(
            f"W&B was not updated: {first_line(error)}; the same command sends the report"
        ) from error
    finally:
        write_json(path, {"where": where})
    print("At W&B:")
    for key in ("report", "arms", "runs", "run"):
        print(f"  {where[key]}")
    if missing:
        lacks = f"{missing} of {len({run.run_id for run in study.runs})} runs of {study.name}"
        sync = sync_command(study)
        how = f"upload them by `{sync}`, then run" if sync else "when they have arrived, run"
        raise RunFailed(f"{where['at']} lacks {lacks}; {how} this command again")


def send(written: WrittenReport, logger: Mapping[str, Any], where: dict[str, Any]) -> int:
    """Send everything; return how many runs with a difference W&B does not have.

    logger: that of the study's runs. where: the addresses from the last time; updated in place as
    far as sending gets.
    """
    from ablate.study.publish.views import Place, save_report, save_view

    report = written.report
    with _scratch() as scratch:
        api = _connect()
        entity: str | None = logger["entity"] or api.default_entity
        if entity is None:
            raise RunFailed("the key has no default entity; name one by logger.entity")
        place = Place(entity, logger["project"], logger["job_type"] or TRAIN)
        path = f"{entity}/{place.project}"
        at = f"{api.settings['base_url']}/{path}"
        if where.get("at") != at:
            where.clear()
            where["at"] = at
        rows = _rows(report)
        state = sha256(json.dumps(rows).encode())
        for file in written.files:
            state.update(file.read_bytes())
        if where.get("state") != state.hexdigest():  # else its history would get a second row
            where["run"] = _log(written, rows, place, scratch)
            where["state"] = state.hexdigest()
        missing = _summarize(api, path, summaries(report))
        for key in ("arms", "runs"):
            where[key] = save_view(report, place, grouped=key == "arms", known=where.get(key))
        where["report"], where["report_id"] = save_report(
            written, place, table=TABLE, run=report_id(report), known=where.get("report_id")
        )
    return missing


def _rows(report: Report) -> list[list[Any]]:
    rows = []
    for arm in map(arm_content, report.rows):
        low, high = arm["interval"] or (None, None)
        rows.append([(arm | {"low": low, "high": high})[key] for key in COLUMNS.values()])
    return rows


def report_id(report: Report) -> str:
    """The id of the report's run, always the same one."""
    study = report.study
    question = [study.name, (study.plan.get("baseline") or {}).get("config")]
    return f"report-{sha256(json.dumps(question, sort_keys=True).encode()).hexdigest()[:12]}"


def summaries(report: Report) -> dict[str, dict[str, float | None]]:
    """Map each run id to values of its summary; None if it must have no such key."""
    from ablate.study.publish.views import difference

    study, key = report.study, difference(report.metric)
    values: dict[str, dict[str, float | None]] = {run.run_id: {key: None} for run in study.runs}
    for row in report.rows:
        runs = study.runs_of(row.arm.name)
        if row.arm.is_baseline or row.comparison:
            base = report.baseline.values
            values |= {
                runs[seed].run_id: {key: value - base[seed]}
                for seed, value in row.values.items()
                if seed in base
            }
    return values


@contextmanager
def _scratch() -> Iterator[Path]:
    """A temporary folder for W&B's files before they are sent, removed afterwards."""
    before = os.environ.get("WANDB_DIR")
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        os.environ["WANDB_DIR"] = folder
        try:
            yield Path(folder)
        finally:
            os.environ.pop("WANDB_DIR")
            if before is not None:
                os.environ["WANDB_DIR"] = before


def _connect() -> "wandb.Api":
    """Connect without asking for a key. Raises RunFailed if W&B is not available."""
    import wandb

    current = settings()
    if current.mode != "online":
        raise RunFailed(f"it is switched off here (WANDB_MODE={current.mode})")
    if not has_key():
        raise RunFailed("no API key; set it by `wandb login`, or in WANDB_API_KEY")
    try:
        return wandb.Api(timeout=START)
    except wandb.errors.AuthenticationError as error:
        response = getattr(error.__cause__, "response", None)
        status = response.http_status if response else None
        problem = (
            f"rejects the API key (HTTP {status})" if status else f"did not answer in {START} s"
        )
        raise RunFailed(f"{current.base_url} {problem}") from error


def _log(
    written: WrittenReport, rows: Sequence[Sequence[Any]], place: "Place", scratch: Path
) -> str:
    import wandb

    study = written.report.study
    folder = study.folder.resolve()
    files = [folder / path.relative_to(study.folder) for path in written.files]
    figures = {
        f"report/{path.stem}": wandb.Image(str(path)) for path in files if path.suffix == ".png"
    }
    run = open_run(
        "online",
        project=place.project,
        entity=place.entity,
        id=report_id(written.report),
        name=f"{study.name} report",
        group=study.name,
        job_type="report",
        tags=[study.name, "report"],
        config={"ablate": {"study": study.name}},
        dir=str(scratch),
    )
    try:  # `with` would print a traceback
        run.log({TABLE: wandb.Table([*COLUMNS], [*rows], allow_mixed_types=True), **figures})
        for path in files:
            run.save(str(path), base_path=str(folder), policy="now")
        return str(run.url)
    finally:
        run.finish()


def _summarize(api: "wandb.Api", path: str, summaries: dict[str, dict[str, Any]]) -> int:
    """Update the summaries that differ; return how many runs with a value are absent."""
    names, present = list(summaries), set()
    for first in range(0, len(names), AT_ONCE):
        filters = {"name": {"$in": names[first : first + AT_ONCE]}}
        for run in api.runs(path, filters=filters, per_page=100, lazy=False):
            present.add(run.id)
            summary, wanted = run.summary, summaries[run.id]
            old = {key: summary.get(key) for key in wanted}
            if old != wanted:
                for key in [key for key in wanted if key in summary]:
                    del summary[key]
                summary.update({key: v for key, v in wanted.items() if v is not None})
    absent = [summaries[name].values() for name in names if name not in present]
    return sum(any(value is not None for value in values) for values in absent)
