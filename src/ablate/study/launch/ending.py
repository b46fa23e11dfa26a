"""How a process ended, written down where the run itself could not do it any more."""

import os
import re
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ablate.files import RESULT, read_mapping, write_json
from ablate.study.launch.state import RESUMES, TAIL, State, last_lines, state_alone

REFUSED, STOPPED = 2, 130  # exit codes of the command line
RUN_ID = re.compile(r"(?:^|-)([0-9a-f]{12})$")  # at the end of a run folder's name


@dataclass(frozen=True)
class Mark:
    """What result.json was at a moment, so that a later look knows whether it was written since."""

    identity: tuple[int, int] | None

    @classmethod
    def of(cls, folder: Path) -> "Mark":
        try:
            found = os.stat(folder / RESULT)
        except FileNotFoundError:
            return cls(None)
        return cls((found.st_ino, found.st_mtime_ns))


def settle(folder: Path, code: int, before: Mark, *, reason: str | None = None) -> State:
    """Make result.json say how a run ended whose process is gone; returns its state.

    code: the exit code, of a death minus the signal's number. before: as it was when the process
    began. reason: why its launcher ended it, if it did; one that holds `RESUMES` is no failure.
    """
    result = read_mapping(folder / RESULT)
    told = result.get("status") not in (None, "running") and Mark.of(folder) != before
    stopped = reason is not None and RESUMES in reason
    if result.get("status") == "finished" or (told and (reason is None or stopped)):
        return state_alone(folder)
    if not result and stopped:  # it had not begun
        return state_alone(folder)
    status = "refused" if code == REFUSED and reason is None else "failed"
    error = reason if stopped else _reason(folder, code, asked=reason)
    write_json(folder / RESULT, {**_nothing(folder), **result, "status": status, "error": error})
    return state_alone(folder)


def _reason(folder: Path, code: int, *, asked: str | None) -> str:
    printed = last_lines(folder)
    if asked:
        return f"{asked}{TAIL}{printed}"
    if code == REFUSED:
        return printed.rpartition("ablate: ")[2]
    if code == STOPPED:
        return f"stopped before its first step; {RESUMES}"
    if code >= 0:
        return f"ended with code {code}{TAIL}{printed}"
    name = signal.Signals(-code).name
    memory = " (perhaps out of memory)" if name == "SIGKILL" else ""
    return f"killed by {name}{memory}{TAIL}{printed}"


def _nothing(folder: Path) -> dict[str, Any]:
    """What every result.json holds, of a run that did not come to write it."""
    found = RUN_ID.search(folder.name)
    return {"run_id": found[1] if found else None, "metrics": {}}
