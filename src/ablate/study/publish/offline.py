"""Runs of a study whose W&B runs lie on this disk only."""

import shlex
from pathlib import Path

from ablate.study.analysis.collect import Study


def sync_command(study: Study) -> str | None:
    """What sends them all, tuning runs too; None where none is left to send."""
    if not any(_waits(run.folder) for run in (*study.runs, *study.tuning)):
        return None
    # W&B takes folders of runs, and leaves out what was sent before.
    return f"wandb sync {shlex.quote(str(study.folder))}/*/wandb"


def _waits(run_dir: Path) -> bool:
    """W&B puts `.synced` behind the name of a file that it has sent."""
    files = run_dir.glob("wandb/offline-run-*/*.wandb")
    return any(not file.with_name(f"{file.name}.synced").exists() for file in files)
