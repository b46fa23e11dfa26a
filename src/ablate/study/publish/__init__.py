"""python -m ablate.report STUDY_DIR --wandb: publish the report at Weights & Biases.

The content is first written to wandb.json next to the report, and then sent. The same command
resumes after W&B could not be reached, and updates an earlier upload.
"""

from importlib.util import find_spec
from typing import Any

from ablate.errors import RunFailed, UserError
from ablate.logger import first_line
from ablate.machine.version import install
from ablate.run_files import read_json, write_json
from ablate.study.analysis.offline import sync_command
from ablate.study.publish.specification import specification
from ablate.study.report import WrittenReport

SPECIFICATION = "wandb.json"


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
    spec = specification(written)
    path = study.folder / SPECIFICATION
    where: dict[str, Any] = (read_json(path) or {}).get("where", {})
    write_json(path, {**spec, "where": where})
    try:
        missing = send(spec, study.folder, where)
    except Exception as error:  # of many kinds; the local report is complete
        raise RunFailed(
            f"W&B was not updated: {first_line(error)}; the upload is kept in {path},"
            " and the same command sends it"
        ) from error
    finally:
        write_json(path, {**spec, "where": where})
    print("At W&B:")
    for key in ("report", "arms", "runs", "run"):
        print(f"  {where[key]}")
    if missing:
        lacks = f"{missing} of {len(spec['summaries'])} runs of {study.name}"
        sync = sync_command(study)
        how = f"upload them by `{sync}`, then run" if sync else "when they have arrived, run"
        raise RunFailed(f"{where['at']} lacks {lacks}; {how} this command again")
