"""What a job of Slurm does: train one run, and leave it so that the next try goes on with it.

Every task of the job (one per device) starts `python -m ablate` and waits for it. Slurm sends its
signals to all processes: SIGTERM when the job is cancelled, preempted or requeued, upon which the
run writes a checkpoint; SIGUSR2 before the time is over, which the run ignores and submitit turns
into `checkpoint` and a requeue.
"""

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from submitit import JobEnvironment
from submitit.core.utils import DelayedSubmission, UncompletedJobError

from ablate.files import read_mapping
from ablate.study.launch.ending import STOPPED, Mark, settle
from ablate.study.launch.state import COMMAND, LOG, QUEUED, state_alone

POLL = 0.2  # seconds between looks at the run
NOTED = 120.0  # seconds within which a launcher that lives has written down which jobs it has made
ASKED_TO_STOP = (STOPPED, -signal.SIGTERM)  # how a run ends that was: the second before it began


class Job:
    """Called by submitit in every task. `limit` says in words when time-outs have been too many."""

    def __init__(self, arguments: Sequence[str], folder: Path, limit: str):
        self.arguments, self.folder, self.limit = list(arguments), folder, limit
        self.run: subprocess.Popen[bytes] | None = None
        self.timed_out = False

    def __call__(self) -> None:
        here = JobEnvironment()
        if not self._wanted(here.job_id):
            print(f"{self.folder}: another job has this run, or its launcher died submitting it")
            return
        before = Mark.of(self.folder)
        self.run = self._start(speaks=here.global_rank == 0)
        reason = None
        try:
            while self.run.poll() is None:
                time.sleep(POLL)  # not `wait`: `checkpoint` is called in the middle of it
        except UncompletedJobError:  # submitit's, when it does not requeue
            reason = self.limit if self.timed_out else None
        code = self.run.wait()
        if here.global_rank != 0:  # the first task speaks for all
            sys.exit(0 if code in ASKED_TO_STOP else _as_exit_code(code))
        if code in ASKED_TO_STOP and reason is None:
            # Cancelled or requeued, which Slurm knows; the entry stays for those who ask it.
            if _preempted_with_grace(here.job_id):
                subprocess.run(["scontrol", "requeue", here.job_id], check=True)
        elif state_alone(self.folder).name != "running":  # by hand, somewhere else
            settle(self.folder, code, before, reason=reason)
            (self.folder / QUEUED).unlink(missing_ok=True)
        sys.exit(_as_exit_code(code))

    def checkpoint(self) -> DelayedSubmission | None:
        """Stops the run with a checkpoint, and says what goes on with it; None if it has ended."""
        if self.run is None or self.run.poll() is not None:
            return None
        self.timed_out = True
        self.run.terminate()
        with suppress(ChildProcessError):
            os.waitid(os.P_PID, self.run.pid, os.WEXITED | os.WNOWAIT)
        if state_alone(self.folder).name == "finished":
            return None
        return DelayedSubmission(Job(self.arguments, self.folder, self.limit))

    def _start(self, *, speaks: bool) -> "subprocess.Popen[bytes]":
        """The command, as a person could type it; it prints into the run's folder."""
        for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
            if cpus := os.environ.get("SLURM_CPUS_PER_TASK"):
                os.environ.setdefault(name, cpus)  # the person may have said how many threads
        # Unbuffered: the last lines of a run that is killed say where it was.
        command = [sys.executable, "-u", "-m", "ablate", *self.arguments]
        with open(self.folder / LOG, "ab", buffering=0) as log, _deaf_to(signal.SIGUSR2):
            if speaks:
                log.write(f"{COMMAND}{shlex.join(self.arguments)}\n".encode())
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def _wanted(self, job: str) -> bool:
        """Whether the run's folder names this job.

        It names one job at a time, so that no run is trained twice even where a launcher was killed
        between submitting its jobs and writing them down.
        """
        end = time.monotonic() + NOTED
        while time.monotonic() < end:
            if named := read_mapping(self.folder / QUEUED).get("job"):
                return bool(named == job)
            time.sleep(POLL)
        return False


@contextmanager
def _deaf_to(number: signal.Signals) -> Iterator[None]:
    """Processes begun here never hear the signal; this one hears it afterwards."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [number])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])


def _preempted_with_grace(job: str) -> bool:
    """Whether Slurm is going to requeue a job that still runs; it does not when the job ends."""
    said = described(job)
    return said.get("JobState") == "RUNNING" and said.get("PreemptTime", "None") != "None"


def described(job: str) -> dict[str, str]:
    """What Slurm says of a job, such as {"JobState": "CANCELLED", ...}; it forgets those of old."""
    asked = subprocess.run(["scontrol", "show", "job", "-o", job], capture_output=True, text=True)
    return dict(word.partition("=")[::2] for word in asked.stdout.split())


def _as_exit_code(code: int) -> int:
    """Of a death by signal, what a shell says of it."""
    return code if code >= 0 else 128 - code
