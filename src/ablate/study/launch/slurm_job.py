"""A Slurm job: train one run, and leave it so that the next attempt can resume it.

Every task of the job (one per device) starts the worker and waits for it. Slurm sends its
signals to all processes: SIGTERM when the job is cancelled, preempted or requeued, upon which the
run writes a checkpoint; SIGUSR2 before the time limit, which the run ignores and submitit turns
into `checkpoint` and a requeue.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from submitit import JobEnvironment
from submitit.core.utils import DelayedSubmission, UncompletedJobError

from ablate.run_files import read_mapping
from ablate.study.launch.ending import STOPPED, mark, record_exit
from ablate.study.launch.forks import Start
from ablate.study.launch.state import LOG, QUEUED, WORKER, state_alone

POLL = 0.2  # seconds between checks of the run
NOTED = 120.0  # seconds within which a living launcher has recorded the jobs it has submitted
ASKED_TO_STOP = (STOPPED, -signal.SIGTERM)  # exit statuses; the second, before the run has started


class Job:
    """Called by submitit in every task. limit: the error message after too many timeouts."""

    def __init__(self, start: Start, limit: str):
        self.start, self.limit = start, limit
        self.folder = Path(start.folder)
        self.run: subprocess.Popen[bytes] | None = None
        self.timed_out = False

    def __call__(self) -> None:
        environment = JobEnvironment()
        if not self._wanted(environment.job_id):
            print(f"{self.folder}: another job has this run, or its launcher died submitting it")
            return
        before = mark(self.folder)
        self.run = self._start(speaks=environment.global_rank == 0)
        reason = None
        try:
            while self.run.poll() is None:
                time.sleep(POLL)  # not `wait`, since `checkpoint` is called meanwhile
        except UncompletedJobError:  # raised by submitit when it does not requeue
            reason = self.limit if self.timed_out else None
        code = self.run.wait()
        if environment.global_rank != 0:  # the first task records the end for all
            sys.exit(0 if code in ASKED_TO_STOP else _as_exit_code(code))
        if code in ASKED_TO_STOP and reason is None:
            # Cancelled or requeued, which Slurm knows; the entry in queued.json stays.
            if _preempted_with_grace(environment.job_id):
                subprocess.run(["scontrol", "requeue", environment.job_id], check=True)
        elif state_alone(self.folder).name != "running":  # not by hand, somewhere else
            record_exit(self.folder, code, before, reason=reason)
            (self.folder / QUEUED).unlink(missing_ok=True)
        sys.exit(_as_exit_code(code))

    def checkpoint(self) -> DelayedSubmission | None:
        """Stop the run with a checkpoint; return the job that resumes it, or None if it is done."""
        if self.run is None or self.run.poll() is not None:
            return None
        self.timed_out = True
        self.run.terminate()
        with suppress(ChildProcessError):
            os.waitid(os.P_PID, self.run.pid, os.WEXITED | os.WNOWAIT)
        if state_alone(self.folder).name == "finished":
            return None
        return DelayedSubmission(Job(self.start, self.limit))

    def _start(self, *, speaks: bool) -> "subprocess.Popen[bytes]":
        for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
            if cpus := os.environ.get("SLURM_CPUS_PER_TASK"):
                os.environ.setdefault(name, cpus)  # the user may have set the number of threads
        # Unbuffered, so that the last lines of a killed run are written.
        command = [sys.executable, "-u", "-m", WORKER, *self.start.arguments]
        with open(self.folder / LOG, "ab", buffering=0) as log, _blocked(signal.SIGUSR2):
            if speaks:
                log.write(f"{self.start.typed}\n".encode())
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def _wanted(self, job: str) -> bool:
        """Whether the run's folder names this job.

        It names one job at a time, so that no run is trained twice even if a launcher was killed
        between submitting its jobs and recording them.
        """
        end = time.monotonic() + NOTED
        while time.monotonic() < end:
            if named := read_mapping(self.folder / QUEUED).get("job"):
                return bool(named == job)
            time.sleep(POLL)
        return False


@contextmanager
def _blocked(number: signal.Signals) -> Iterator[None]:
    """Block a signal for processes started here; this process receives it afterwards."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [number])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])


def _preempted_with_grace(job: str) -> bool:
    """Whether Slurm will requeue a job that is still running; not if the job ends by itself."""
    record = described(job)
    return record.get("JobState") == "RUNNING" and record.get("PreemptTime", "None") != "None"


def described(job: str) -> dict[str, str]:
    """Return Slurm's record of a job, {"JobState": "CANCELLED", ...}; it forgets old jobs."""
    process = subprocess.run(["scontrol", "show", "job", "-o", job], capture_output=True, text=True)
    return dict(word.partition("=")[::2] for word in process.stdout.split())


def _as_exit_code(code: int) -> int:
    """Return the exit status that a shell reports, also for a process killed by a signal."""
    return code if code >= 0 else 128 - code
