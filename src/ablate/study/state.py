"""What became of each run of a study, read from the files in its folder and nothing else.

    missing    never begun, or stopped with a checkpoint: the same command goes on with it
    queued     taken by a launcher, and not training yet
    running    a process trains in the folder now
    finished, failed, refused

A file `queued.json` says which launcher took a run: {"launcher", "job", "host", "pid", "time"}.
It counts while that launcher holds its claim (claim.py), or while Slurm knows the job, which goes
on without the launcher. torch is not imported here.
"""

import fcntl
import json
import os
import platform
import shutil
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from ablate.atomic import read_json

RESULT, QUEUED, LOG, PLAN = "result.json", "queued.json", "stdout.log", "plan.json"
COMMAND = "python -m ablate "  # begins the first line of LOG
PROGRESS = "progress.json"  # written by the run while it trains
LOCK, CLAIM = ".lock", ".claim"  # held by the process that trains, by the launcher that took it
GOES_ON = "the same command goes on"  # what a run that was stopped on request says of itself
SQUEUE_SECONDS = 5  # how long an answer of squeue is believed


@dataclass(frozen=True)
class State:
    """One run. `detail` is for people: an error, the last lines of a death, where it runs."""

    name: str
    detail: str = ""
    step: int | None = None
    steps: int | None = None
    rate: float | None = None  # steps per second
    result: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    @property
    def ended(self) -> bool:
        return self.name in ("finished", "failed", "refused")


def state(folder: Path) -> State:
    result = _read(folder / RESULT)
    trains = result.get("status") == "running" and held(folder / LOCK)
    if result.get("status") != "finished" and not trains and (entry := queued(folder)):
        return State("queued", where(entry), result=result)
    return state_alone(folder)


def state_alone(folder: Path) -> State:
    """The state whatever a launcher may have in mind."""
    result = _read(folder / RESULT)
    status, error = result.get("status"), result.get("error") or ""
    if status == "running":
        now = _read(folder / PROGRESS)
        steps = {key: now.get(key) for key in ("step", "steps", "rate")}
        if held(folder / LOCK):
            return State("running", where(now), **steps, result=result)
        return State("failed", f"died: {last_lines(folder)}", **steps, result=result)
    if status == "failed" and GOES_ON in error:
        return State("missing", error, result=result)
    if status in ("finished", "failed", "refused"):
        return State(status, error, result=result)
    return State("missing")


def states(study_dir: Path) -> dict[str, State]:
    """Folder name -> state, in the order of the plan; of all run folders where there is no plan."""
    plan = read_json(study_dir / PLAN)
    if plan is not None:
        names = list(dict.fromkeys(cell["folder"] for cell in plan["cells"]))
    else:
        files = (RESULT, QUEUED, LOCK)
        folders = sorted(path for path in study_dir.iterdir() if path.is_dir())
        names = [path.name for path in folders if any((path / name).exists() for name in files)]
    return {name: state(study_dir / name) for name in names}


def queued(folder: Path) -> dict[str, Any] | None:
    """The entry of the launcher that has taken the run and lives."""
    entry = _read(folder / QUEUED)
    return entry if entry and _alive(folder, entry) else None


def _alive(folder: Path, entry: Mapping[str, Any]) -> bool:
    if outlives_launcher(entry):
        known = _slurm_jobs(int(time.monotonic() / SQUEUE_SECONDS))
        return known is None or str(entry["job"]) in known
    if (folder / CLAIM).exists():
        return held(folder / CLAIM)
    return entry.get("host") != platform.node() or _process_lives(entry.get("pid"))


def outlives_launcher(entry: Mapping[str, Any]) -> bool:
    return entry.get("launcher") == "slurm" and bool(entry.get("job"))


def _process_lives(pid: Any) -> bool:
    try:
        os.kill(int(pid), 0)
    except (ProcessLookupError, TypeError, ValueError):
        return False
    except PermissionError:
        return True  # somebody else's
    return True


@cache
def _slurm_jobs(moment: int) -> set[str] | None:
    """Every job and array task that Slurm has waiting or running; None where it cannot be asked."""
    if shutil.which("squeue") is None:
        return None
    asked = subprocess.run(["squeue", "-h", "-r", "-o", "%i"], capture_output=True, text=True)
    return set(asked.stdout.split()) if asked.returncode == 0 else None


def held(lock: Path) -> bool:
    """Whether a living process, on whatever machine, holds the lock."""
    try:
        descriptor = os.open(lock, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def where(entry: Mapping[str, Any]) -> str:
    """Such as "job 17 (slurm) on node3", "pid 4711 on desk"."""
    if not entry:
        return ""
    job, launcher = entry.get("job"), entry.get("launcher")
    who = f"job {job} ({launcher})" if job else f"pid {entry.get('pid')}"
    return f"{who} on {entry.get('host')}"


def last_lines(folder: Path, lines: int = 5, characters: int = 500) -> str:
    """The end of what the run printed, in one line."""
    try:
        with open(folder / LOG, "rb") as file:
            file.seek(max(0, os.path.getsize(folder / LOG) - 10_000))
            text = file.read().decode(errors="replace")
    except FileNotFoundError:
        return "it printed nothing"
    printed: list[str] = []
    for line in text.splitlines():
        if line.startswith(COMMAND):
            printed.clear()  # of the last try
        elif line.strip():
            printed.append(line.strip())
    return " | ".join(printed[-lines:])[-characters:] or "it printed nothing"


def _read(path: Path) -> dict[str, Any]:
    try:
        return read_json(path) or {}
    except (FileNotFoundError, json.JSONDecodeError):  # removed in between; damaged by hand
        return {}
