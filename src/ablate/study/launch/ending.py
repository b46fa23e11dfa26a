"""Record the exit status of a crashed run."""

import os
import signal
from pathlib import Path

from ablate.config.run_id import id_in
from ablate.run_files import RESULT, write_json
from ablate.run_files.records import read_result
from ablate.study.launch.state import LOCK, RESUMES, TAIL, State, held, last_lines, state_alone

REFUSED, STOPPED = 2, 130  # exit statuses of the command line

Mark = tuple[int, int] | None


def mark(folder: Path) -> Mark:
    """The identity of result.json now, to detect later whether it was written since."""
    try:
        status = os.stat(folder / RESULT)
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_mtime_ns


def record_exit(folder: Path, code: int, before: Mark, *, reason: str | None = None) -> State:
    """Write the exit status of an ended process to the run's result.json; return the run's state.

    code: the exit status, or minus the number of the signal that killed it. before: result.json
    when the process started. reason: why the launcher ended it, if it did; one with `RESUMES` is a
    stop that can be resumed, not a failure.
    """
    if code == REFUSED and held(folder / LOCK):  # another process trains there, or begins to
        return state_alone(folder)
    result, _ = read_result(folder)
    recorded = result.get("status") not in (None, "running") and mark(folder) != before
    stopped = reason is not None and RESUMES in reason
    if result.get("status") == "finished" or (recorded and (reason is None or stopped)):
        return state_alone(folder)
    if not result and stopped:  # the run had not started
        return state_alone(folder)
    status = "rejected" if code == REFUSED and reason is None else "failed"
    error = reason if stopped else _reason(folder, code, requested=reason)
    content = {"run_id": id_in(folder.name), "metrics": {}, **result}  # it may have written none
    write_json(folder / RESULT, {**content, "status": status, "error": error})
    return state_alone(folder)


def _reason(folder: Path, code: int, *, requested: str | None) -> str:
    printed = last_lines(folder)
    if requested:
        return f"{requested}{TAIL}{printed}"
    if code == REFUSED:
        return printed.rpartition("ablate: ")[2]
    if code == STOPPED:
        return f"stopped before its first step; {RESUMES}"
    if code == 0:
        return f"its process ended without an error, but before the run was finished{TAIL}{printed}"
    if code > 0:
        return f"ended with code {code}{TAIL}{printed}"
    name = signal.Signals(-code).name
    memory = " (perhaps out of memory)" if name == "SIGKILL" else ""
    return f"killed by {name}{memory}{TAIL}{printed}"
