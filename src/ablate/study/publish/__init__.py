"""python -m ablate.report STUDY_DIR --wandb: publish the report at Weights & Biases.

The addresses are written to wandb.json next to the report, so that the same command updates an
earlier upload, or continues it after W&B could not be reached.
"""

from importlib.util import find_spec
from typing import Any

from ablate.errors import RunFailed, UserError
from ablate.logger import first_line
from ablate.machine.version import install
from ablate.run_files import read_json, write_json
from ablate.study.analysis.offline import logger_of, sync_command
from ablate.study.report import WrittenReport

ADDRESSES = "wandb.json"


def require_workspaces() -> None:
    """Raise UserError without the package that makes views and reports."""
    if find_spec("wandb_workspaces") is None:
        raise UserError(f"--wandb needs a package: {install('wandb')}")


def publish(written: WrittenReport) -> None:
    """Send a report and print its addresses.

    Raises UserError if no run of the study was logged to W&B, and RunFailed, in one line, if W&B
    does not have everything afterwards.
    """
    from ablate.study.publish.send import send

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
