"""Remove the folders that a rejected run has created, and no others."""

import shutil
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, NoReturn

from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf, read_write
from omegaconf.errors import OmegaConfBaseException

from ablate.config.composition import Composition
from ablate.config.schema import VALUES
from ablate.errors import UserError, one_line, unwrap
from ablate.run_files import COMMANDS, PLAN, PLANNING, refuse_links
from ablate.terminal.say import say


class Folder(Callback):
    """Create the folder of a run, as Hydra would before the run is checked, and record it."""

    created: ClassVar[list[Path]] = []  # the folder, then its parents, that this process created
    of_sweep: ClassVar[bool] = False  # whether it contains the folders of runs

    def on_run_start(self, config: DictConfig, **kwargs: Any) -> None:
        _require_machine(config)
        _record(config, "hydra.run.dir", of_sweep=False)

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        _record(config, "hydra.sweep.dir", of_sweep=True)


def _require_machine(config: DictConfig) -> None:
    """Reject what this machine lacks before the data are read, which the folder's name needs."""
    try:
        composition = Composition.begun(config)
    except (UserError, OmegaConfBaseException):
        return  # the run reports it
    try:
        from ablate.training.preflight import check_machine

        check_machine(composition.values)
    except Exception as error:
        if ours := unwrap(error):  # else the run reports it
            _end(ours)


def _end(error: BaseException) -> NoReturn:
    """End the command, since Hydra passes on no Exception of a callback."""
    say(one_line(error), file=sys.stderr)
    raise SystemExit(2 if isinstance(error, UserError) else 1)


def _record(config: DictConfig, key: str, *, of_sweep: bool) -> None:
    try:
        folder = Path(OmegaConf.select(config, key)).absolute()
    except OmegaConfBaseException:
        return  # nothing will be created: Hydra raises the same error
    with suppress(OmegaConfBaseException):  # rejected with all other keys
        inside = folder.resolve().is_relative_to(Path(config.output_dir).resolve())
        if not inside and VALUES["study.name"].allows(config.study.name):  # others are rejected
            say(f"output in {folder.resolve()}, outside output_dir={config.output_dir}")
    try:
        refuse_links(folder)
    except UserError as error:  # Hydra would write there
        _end(error)
    if not of_sweep:
        # Hydra resolves this again, and the folder's name may need data that takes seconds to make.
        with read_write(config):
            OmegaConf.update(config, key, str(folder))
    remember(folder, of_sweep=of_sweep)


def remember(folder: Path, *, of_sweep: bool) -> None:
    """Record a folder, and its parents, that do not exist yet; create that of a run."""
    Folder.of_sweep = of_sweep
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    Folder.created[:] = missing if of_sweep else [p for p in reversed(missing) if _created(p)][::-1]


def _created(folder: Path) -> bool:
    """Whether this process created the folder; an identical command may create it meanwhile."""
    try:
        folder.mkdir()
    except OSError:  # where nothing can be written, Hydra raises the same error
        return False
    return True


def remove_created() -> None:
    """Remove the folder that this run created, and its parents if they are otherwise empty.

    The folder of a sweep is removed only if it has no runs in it, that of a run only if it has no
    checkpoint and no other process trains there.
    """
    from filelock import FileLock

    if Folder.created and Folder.of_sweep:
        folder = Folder.created[0]
        with suppress(OSError):
            if not any(path.is_dir() for path in folder.iterdir()):  # no run has begun
                for name in ("multirun.yaml", PLAN, COMMANDS, PLANNING):  # the first is Hydra's
                    (folder / name).unlink(missing_ok=True)
    elif Folder.created and not any(Folder.created[0].glob("checkpoints/*")):
        with suppress(OSError), FileLock(Folder.created[0] / ".lock", timeout=0):
            shutil.rmtree(Folder.created[0], ignore_errors=True)
    for path in Folder.created:
        try:
            path.rmdir()
        except FileNotFoundError:
            continue
        except OSError:
            return  # another run has written there meanwhile
