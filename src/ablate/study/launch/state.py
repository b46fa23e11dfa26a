"""The state of each run of a study, read from the files in its folder.

    missing    never started, or stopped with a checkpoint: the same command resumes it
    queued     claimed by a launcher, and not training yet
    running    a process trains in the folder now
    finished, failed, rejected

A file `queued.json` names the launcher that took a run: {"launcher", "job", "host", "pid", "time"}.
It counts while that launcher has its claim (claim.py), or while Slurm knows the job, which
continues without the launcher. A job that Slurm no longer knows, and whose run has not ended by
itself, was cancelled or lost: the run failed. torch is not imported here.
"""

import os
import shutil
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from errno import ELOOP, ENOENT, ENXIO
from functools import lru_cache
from pathlib import Path
from typing import Any

from ablate.machine.terminal.say import command_line
from ablate.run_files import PROGRESS, CorruptFile, open_file, read_mapping
from ablate.run_files.records import read_plan, read_result

QUEUED, LOG = "queued.json", "stdout.log"
WORKER = "ablate.study.launch.worker"  # module that a run's process executes
COMMAND = f"{command_line('ablate')} "  # start of the first line of LOG
LOCK, CLAIM = ".lock", ".claim"  # held by the process that trains, and by its launcher
RESUMES = "the same command resumes"  # in the error of a run that was stopped on request
TAIL = "; last lines: "  # before the output of a run, in an error that its launcher wrote
LAST, LETTERS = 5, 500  # lines of these, and their characters together, at most
SQUEUE_SECONDS = 5  # how long an answer of squeue is cached
# A younger job may be missing in the cached answer; includes a margin for clocks that differ.
YOUNG = SQUEUE_SECONDS + 10


@dataclass(frozen=True)
class State:
    """The state of a run. detail: for people: an error, the last lines of a crash, its place."""

    name: str
    detail: str = ""
    step: int | None = None
    steps: int | None = None
    rate: float | None = None  # steps per second
    result: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    @property
    def ended(self) -> bool:
        return self.name in ("finished", "failed", "rejected")


def state(folder: Path) -> State:
    result, _ = read_result(folder)
    trains = result.get("status") == "running" and held(folder / LOCK)
    entry = read_mapping(folder / QUEUED)
    if result.get("status") == "finished" or trains or not entry:
        return state_alone(folder)
    if _alive(folder, entry):
        return State("queued", where(entry), result=result)
    current = state_alone(folder)
    if current.name == "missing" and outlives_launcher(entry):
        gone = f"job {entry['job']} (slurm) was cancelled or lost"
        return replace(
            current, name="failed", detail="; ".join(filter(None, [gone, current.detail]))
        )
    return current


def state_of(folder: Path, run_id: str) -> State:
    """Return the state of the run that a folder is planned for; the folder may contain another."""
    now = state(folder)
    # A launcher may have recorded the crash of a run that had not written its id.
    if (other := now.result.get("run_id")) not in (None, run_id):
        return State("missing", f"its directory contains another run, {other}; remove it")
    return now


def state_alone(folder: Path) -> State:
    """Return the state regardless of launchers."""
    result, wrong = read_result(folder)
    status, error = result.get("status"), result.get("error") or ""
    if status == "running":
        now = read_mapping(folder / PROGRESS)
        steps = {key: now.get(key) for key in ("step", "steps", "rate")}
        if held(folder / LOCK):
            return State("running", where(now), **steps, result=result)
        return State("failed", f"died: {last_lines(folder)}", **steps, result=result)
    if status == "failed" and RESUMES in error.partition(TAIL)[0]:
        return State("missing", error, result=result)
    if status in ("finished", "failed", "rejected"):
        return State(status, error, result=result)
    return State("missing", wrong)


def states(study_dir: Path) -> dict[str, State]:
    """Map the folders of a plan to states, in its order."""
    plan = read_plan(study_dir)
    assert plan is not None
    runs = {cell["folder"]: cell["run_id"] for cell in plan["cells"]}
    return {name: state_of(study_dir / name, run_id) for name, run_id in runs.items()}


def queued(folder: Path) -> dict[str, Any] | None:
    """Return the entry of the living launcher or job that has the run, or None."""
    entry = read_mapping(folder / QUEUED)
    return entry if entry and _alive(folder, entry) else None


def _alive(folder: Path, entry: Mapping[str, Any]) -> bool:
    if outlives_launcher(entry):
        known = slurm_jobs()
        age = datetime.now(UTC) - datetime.fromisoformat(str(entry["time"]))
        return known is None or str(entry["job"]) in known or abs(age.total_seconds()) < YOUNG
    return held(folder / CLAIM)


def outlives_launcher(entry: Mapping[str, Any]) -> bool:
    return entry.get("launcher") == "slurm" and bool(entry.get("job"))


def slurm_jobs() -> Mapping[str, str] | None:
    """Map every waiting or running job and array task to Slurm's description, such as "PENDING
    (Priority)"; None if Slurm is not available."""
    return _slurm_jobs(int(time.monotonic() / SQUEUE_SECONDS))


@lru_cache(maxsize=1)
def _slurm_jobs(moment: int) -> Mapping[str, str] | None:
    if shutil.which("squeue") is None:
        return None
    line = ["squeue", "-h", "-r", "-o", "%i %T (%r)"]
    process = subprocess.run(line, capture_output=True, text=True)
    if process.returncode != 0:
        return None
    jobs = (line.partition(" ") for line in process.stdout.splitlines())
    return {job: described.removesuffix(" (None)") for job, _, described in jobs}


def held(lock: Path) -> bool:
    """Whether a living process, on any machine, has the lock."""
    import fcntl  # not on Windows, see ablate.cli.command

    try:
        descriptor = os.open(lock, os.O_RDONLY | os.O_NONBLOCK)  # a FIFO would block
    except OSError as error:
        if error.errno in (ENOENT, ELOOP, ENXIO):  # none, or nothing that a run locks
            return False
        raise
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def where(entry: Mapping[str, Any]) -> str:
    """Describe the holder, as "job 17 (slurm), PENDING (Priority)" or "pid 4711 on desk"."""
    if not entry:
        return ""
    if not outlives_launcher(entry):
        return f"pid {entry.get('pid')} on {entry.get('host')}"
    described = (slurm_jobs() or {}).get(str(entry["job"]))
    return ", ".join(filter(None, [f"job {entry['job']} (slurm)", described]))


def last_lines(folder: Path) -> str:
    """Return the end of the run's output in one line."""
    try:
        with open_file(folder / LOG) as file:
            file.seek(max(0, os.path.getsize(folder / LOG) - 10_000))
            text = file.read(10_000).decode(errors="replace")
    except (FileNotFoundError, CorruptFile):
        return "it printed nothing"
    printed: list[str] = []
    for line in text.splitlines():
        if line.startswith(COMMAND):
            printed.clear()  # keep only the last attempt
        elif line.strip():
            printed.append(line.strip())
    last = printed[-LAST:]
    while len(last) > 1 and len(" | ".join(last)) > LETTERS:
        last.pop(0)
    return " | ".join(last)[-LETTERS:] or "it printed nothing"
