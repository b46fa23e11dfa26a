"""Runs of a study that were logged to W&B offline and not sent yet."""

import shlex
from pathlib import Path

from ablate.study.analysis.collect import Study


def sync_command(study: Study) -> str | None:
    """Return the command that sends them all, tuning runs included; None if none is left."""
    if not any(_waits(run.folder) for run in (*study.runs, *study.tuning)):
        return None
    # `wandb sync` takes folders of runs, and skips those sent before.
    return f"wandb sync {shlex.quote(str(study.folder))}/*/wandb"


def _waits(run_dir: Path) -> bool:
    """Whether a run has unsent files; W&B adds a file NAME.synced for each that it has sent."""
    files = run_dir.glob("wandb/offline-run-*/*.wandb")
    return any(not file.with_name(f"{file.name}.synced").exists() for file in files)
