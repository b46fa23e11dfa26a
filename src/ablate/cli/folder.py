"""Remove the folders that a refused run has created."""

import shutil
from pathlib import Path
from typing import Any, ClassVar

from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf, read_write
from omegaconf.errors import OmegaConfBaseException


class Folder(Callback):
    """Record which folders will be created: Hydra creates them before a run is checked."""

    made: ClassVar[list[Path]] = []  # the folder, then its parents that did not exist
    of_sweep: ClassVar[bool] = False  # whether it holds the folders of runs

    def on_run_start(self, config: DictConfig, **kwargs: Any) -> None:
        _remember(config, "hydra.run.dir", of_sweep=False)

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        _remember(config, "hydra.sweep.dir", of_sweep=True)


def _remember(config: DictConfig, key: str, *, of_sweep: bool) -> None:
    try:
        folder = Path(OmegaConf.select(config, key)).absolute()
    except OmegaConfBaseException:
        return  # nothing will be created: Hydra raises the same error
    if not of_sweep:
        # Hydra resolves this again, and the folder's name may need data that takes seconds to make.
        with read_write(config):
            OmegaConf.update(config, key, str(folder))
    remember(folder, of_sweep=of_sweep)


def remember(folder: Path, *, of_sweep: bool) -> None:
    """Record a folder, and its parents, that do not exist yet."""
    Folder.of_sweep = of_sweep
    Folder.made[:] = [path for path in (folder, *folder.parents) if not path.exists()]


def remove_made() -> None:
    """Remove the folder that this run created, and its parents if they hold nothing else.

    The folder of a sweep is removed only if it has no runs in it.
    """
    if not Folder.made:
        return
    folder, *above = Folder.made
    if not Folder.of_sweep or not any(path.is_dir() for path in folder.glob("*")):
        shutil.rmtree(folder, ignore_errors=True)
    for path in above:
        try:
            path.rmdir()
        except OSError:
            return  # another run has written there meanwhile
