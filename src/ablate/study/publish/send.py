"""Send the content of wandb.json: the report's run, the summaries, the views, W&B's report.

Each request waits some seconds for W&B; the first failure ends the command.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from ablate.errors import RunFailed
from ablate.logger.wandb import START, has_key, open_run, settings
from ablate.study.publish.views import save_report, save_view

if TYPE_CHECKING:
    import wandb

TABLE = "report/table"
AT_ONCE = 500  # runs in one query


def send(spec: dict[str, Any], folder: Path, where: dict[str, Any]) -> int:
    """Send everything; return how many runs with a difference W&B does not have.

    where: the addresses from the last time; updated in place as far as sending gets.
    """
    with _scratch() as scratch:
        api = _connect()
        entity: str | None = spec["entity"] or api.default_entity
        if entity is None:
            raise RunFailed("the key has no default entity; name one by logger.entity")
        path = f"{entity}/{spec['project']}"
        at = f"{api.settings['base_url']}/{path}"
        if where.get("at") != at:
            where.clear()
            where["at"] = at
        if where.get("state") != spec["run"]["state"]:  # else its history would get a second row
            where["run"] = _log(spec, folder, entity, scratch)
            where["state"] = spec["run"]["state"]
        missing = _summarize(api, path, spec["summaries"])
        for key in spec["views"]:
            where[key] = save_view(spec, key, entity, known=where.get(key))
        where["report"], where["report_id"] = save_report(
            spec, TABLE, entity, known=where.get("report_id")
        )
    return missing


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


def _log(spec: dict[str, Any], folder: Path, entity: str, scratch: Path) -> str:
    """Log the report as a separate run; return its address."""
    import wandb

    report_run, study = spec["run"], spec["study"]
    folder = folder.resolve()
    table = wandb.Table(
        report_run["table"]["columns"], report_run["table"]["rows"], allow_mixed_types=True
    )
    figures = {
        f"report/{Path(n).stem}": wandb.Image(str(folder / n)) for n in report_run["figures"]
    }
    run = open_run(
        "online",
        project=spec["project"],
        entity=entity,
        run_id=report_run["id"],
        name=report_run["name"],
        group=study,
        job_type="report",
        tags=[study, "report"],
        config={"ablate": {"study": study}},
        folder=scratch,
    )
    try:  # `with` would print a traceback
        run.log({TABLE: table, **figures})
        for name in report_run["files"]:
            run.save(str(folder / name), base_path=str(folder), policy="now")
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
