"""A refused run leaves no folder behind that was not there before it."""

import shutil
from pathlib import Path
from typing import Any, ClassVar

from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf, read_write
from omegaconf.errors import OmegaConfBaseException


class Folder(Callback):
    """Remembers which folders are going to be made: Hydra makes them before a run is checked."""

    made: ClassVar[list[Path]] = []  # the folder, then those above it that were not there
    of_sweep: ClassVar[bool] = False  # it holds the folders of runs

    def on_run_start(self, config: DictConfig, **kwargs: Any) -> None:
        _remember(config, "hydra.run.dir", of_sweep=False)

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        _remember(config, "hydra.sweep.dir", of_sweep=True)


def _remember(config: DictConfig, key: str, *, of_sweep: bool) -> None:
    try:
        folder = Path(OmegaConf.select(config, key)).absolute()
    except OmegaConfBaseException:
        return  # nothing will be made: Hydra meets the same error
    if not of_sweep:
        # Hydra asks again, and the name of the folder may need data that takes seconds to make.
        with read_write(config):
            OmegaConf.update(config, key, str(folder))
    remember(folder, of_sweep=of_sweep)


def remember(folder: Path, *, of_sweep: bool) -> None:
    """That it is going to be made, if it is not there."""
    Folder.of_sweep = of_sweep
    Folder.made[:] = [path for path in (folder, *folder.parents) if not path.exists()]


def remove_made() -> None:
    """Removes the folder that this run made, and those above it that hold nothing else.

    The folder of a sweep goes only while it has no runs in it.
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
            return  # another run wrote there in the meantime
