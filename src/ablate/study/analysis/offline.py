"""Runs of a study that were logged to W&B offline and not sent yet."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from omegaconf.errors import OmegaConfBaseException

from ablate.config.saved import read_yaml
from ablate.errors import UserError
from ablate.logger import wandb_node
from ablate.study.analysis.collect import Study


def logger_of(study: Study) -> Mapping[str, Any] | None:
    """Return the node `logger` of the first run that was logged to W&B; None without such a run."""
    loggers = (_logger(run.folder) for run in study.runs if run.result.get("logged_to"))
    return next(filter(None, loggers), None)


def _logger(run_dir: Path) -> Mapping[str, Any] | None:
    try:
        node: Mapping[str, Any] | None = wandb_node(
            read_yaml(run_dir / "config.yaml").get("logger")
        )
    except (OSError, ValueError, UserError, yaml.YAMLError, OmegaConfBaseException):
        return None  # gone, or damaged
    return node


def sync_command(study: Study) -> str | None:
    """Return the command that sends them all, tuning runs included; None if none is left."""
    runs = (*study.runs, *study.tuning)
    # `wandb sync` takes folders of runs, and skips those sent before.
    folders = []
    if any(_waiting(run.folder) for run in runs):
        folders.append(f"{shlex.quote(str(study.folder))}/*/wandb")
    if folder := (logger_of(study) or {}).get("dir"):
        directory = Path(folder).expanduser()
        if _waiting(directory) & {run.run_id for run in runs}:
            folders.append(shlex.quote(str(directory / "wandb")))
    return f"wandb sync {' '.join(folders)}" if folders else None


def _waiting(folder: Path) -> set[str]:
    """Ids of runs with unsent files; W&B adds a file NAME.synced for each that it has sent."""
    files = folder.glob("wandb/offline-run-*/*.wandb")
    return {
        file.stem.removeprefix("run-")
        for file in files
        if not file.with_name(f"{file.name}.synced").exists()
    }
