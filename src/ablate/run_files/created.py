"""Folders that a command creates, and removes again if it is rejected."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock

from ablate.errors import UserError
from ablate.run_files import COMMANDS, PLAN, PLANNING


@contextmanager
def created(folder: Path, *, of_study: bool = False) -> Iterator[None]:
    """Create a folder and its parents. If the block raises UserError, remove those that this
    process has created, unless another process has written there meanwhile.

    That of a study is removed only if it has no runs, that of a run only if it has no checkpoint
    and no other process trains there. A folder that cannot be created is the block's to report.
    """
    folder = folder.absolute()
    ours = [path for path in (*folder.parents[::-1], folder) if _created(path)][::-1]
    try:
        yield
    except UserError:
        if ours and of_study:
            with suppress(OSError):
                if not any(path.is_dir() for path in folder.iterdir()):
                    for name in ("multirun.yaml", PLAN, COMMANDS, PLANNING):  # the first is Hydra's
                        (folder / name).unlink(missing_ok=True)
        elif ours and not any(folder.glob("checkpoints/*")):
            with suppress(OSError), FileLock(folder / ".lock", timeout=0):
                shutil.rmtree(folder, ignore_errors=True)
        for path in ours:
            try:
                path.rmdir()
            except FileNotFoundError:
                continue
            except OSError:
                break
        raise


def _created(folder: Path) -> bool:
    """Whether this process created the folder, or it was there."""
    try:
        folder.mkdir()
    except OSError:
        return False
    return True
