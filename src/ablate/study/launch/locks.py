"""Claim a run, so that one launcher at a time has it, on all machines that share its folder; and
the folder of a study, so that the commands which run it at the same time have one plan.

A claim is a lock on `.claim` in the run's folder, which the OS releases when its holder dies, and
`queued.json`, which names the holder.
"""

# Not filelock: its shared locks are SQLite files, and it tests a lock only by taking it.
import fcntl
import os
import platform
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from ablate.errors import UserError
from ablate.run_files import COMMANDS, PLANNED, PLANNING, refuse_links, write_json
from ablate.study.launch.state import CLAIM, QUEUED, outlives_launcher, queued


class RunLock:
    """A claim on a run, made by `take` and held until `release`."""

    def __init__(self, folder: Path, opened: ExitStack, *, created: bool):
        self.folder, self._opened = folder, opened
        self._created = created  # whether taking the claim created the folder

    @classmethod
    def take(cls, folder: Path, *, launcher: str) -> "RunLock | None":
        """Claim a run; None if another launcher has the claim, or its job waits or runs."""
        refuse_links(folder)
        created = not folder.exists()
        folder.mkdir(parents=True, exist_ok=True)
        with ExitStack() as opened:
            descriptor = opened.enter_context(_opened(folder / CLAIM))
            if not _lock(descriptor, folder, fcntl.LOCK_EX | fcntl.LOCK_NB):
                return None
            with suppress(FileNotFoundError):  # another process may have moved the folder
                if os.path.samestat(os.stat(folder / CLAIM), os.fstat(descriptor)):
                    entry = queued(folder)
                    # We have the lock, so a launcher named in it is gone; its job may be left.
                    if entry and outlives_launcher(entry):
                        return None
                    claim = cls(folder, opened.pop_all(), created=created)
                    claim.note(launcher)
                    return claim
        return cls.take(folder, launcher=launcher)

    def note(self, launcher: str, job: str | None = None) -> None:
        """Record the holder: this process, or a queued job, which outlives this process."""
        entry = {
            "launcher": launcher,
            "job": job,
            "host": platform.node(),
            "pid": os.getpid(),
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        write_json(self.folder / QUEUED, entry, flush=False)

    def move(self, target: Path) -> None:
        """Move the folder and its content away."""
        self.folder = self.folder.rename(target)

    def release(self, *, keep_note: bool = False) -> None:
        """Release the run. keep_note: keep the entry of a job that continues without us."""
        if not keep_note:
            (self.folder / QUEUED).unlink(missing_ok=True)
        self._opened.close()

    def abandon(self) -> None:
        """Release a run that was not started; remove the folder if it was created for the claim."""
        if self._created:
            for name in (CLAIM, PLANNED):
                (self.folder / name).unlink(missing_ok=True)
        self.release()
        if self._created:
            with suppress(OSError):
                self.folder.rmdir()


@contextmanager
def one_plan(folder: Path, decide: Callable[[bool], None]) -> Iterator[None]:
    """Call `decide`, which compares and writes the plan of a study, in one command at a time; then
    keep the folder, shared with the commands that follow, until the block ends.

    decide: takes whether no other command has the folder now.
    """
    with _opened(folder / COMMANDS) as commands:
        with _opened(folder / PLANNING) as planning:
            _lock(planning, folder, fcntl.LOCK_EX)
            decide(_lock(commands, folder, fcntl.LOCK_EX | fcntl.LOCK_NB))
            _lock(commands, folder, fcntl.LOCK_SH)
        yield


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    try:
        yield descriptor
    finally:
        os.close(descriptor)  # which ends its lock


def _lock(descriptor: int, folder: Path, how: int) -> bool:
    """Lock an open file; False if another process has it and `how` is not to wait."""
    try:
        fcntl.flock(descriptor, how)
    except BlockingIOError:
        return False
    except OSError as error:
        raise UserError(
            f"output_dir: {folder} is on a file system without locks ({error.strerror}),"
            " which concurrent studies need; choose another folder"
        ) from error
    return True
