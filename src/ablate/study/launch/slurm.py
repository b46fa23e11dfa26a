"""hydra/launcher=slurm: a Slurm job for every run, submitted by submitit in arrays.

The jobs do not need this process: it submits runs that no launcher has, watches them, and records
the end of jobs that could not do so themselves. The others record theirs in their folders.
"""

import io
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from ablate.errors import Interrupted, UserError
from ablate.machine.stop import Stop, stopping
from ablate.study.launch.ending import record_exit
from ablate.study.launch.live import View
from ablate.study.launch.locks import RunLock
from ablate.study.launch.run import ScheduledRun
from ablate.study.launch.state import State, queued, state, state_alone

if TYPE_CHECKING:
    from submitit import AutoExecutor

NAME = "hydra/launcher=slurm"
PACKAGE = "hydra-submitit-launcher"
ARRAY = 500  # runs submitted at once; Slurm's own limit is 1,000 unless its administrator set it
LOOK = 2.0  # seconds between checks of the folders
WAKE = 0.2  # seconds until a signal is noticed, at most


def require() -> None:
    """Raise UserError if a package or a program is missing."""
    if find_spec("submitit") is None or find_spec("hydra_plugins.hydra_submitit_launcher") is None:
        raise UserError(f"{NAME} needs the package {PACKAGE}: pip install {PACKAGE}")
    missing = [name for name in ("sbatch", "srun", "squeue") if shutil.which(name) is None]
    if missing:
        raise UserError(
            f"{NAME}: this machine has no {', '.join(missing)}: start the study on a machine that"
            " can submit Slurm jobs, or install Slurm's programs (slurm-client)"
        )


def executor(settings: Mapping[str, Any], trainer: DictConfig) -> "AutoExecutor":
    """Make an executor with the settings of conf/hydra/launcher/slurm.yaml.

    Names, types and meanings of the settings are those of hydra-submitit-launcher.
    """
    from hydra_plugins.hydra_submitit_launcher.config import BaseQueueConf, SlurmQueueConf
    from submitit import AutoExecutor

    parameters = {**settings, **processes(settings, trainer)}
    try:
        checked = OmegaConf.merge(OmegaConf.structured(SlurmQueueConf), parameters)
    except OmegaConfBaseException as error:
        key = error.full_key or error.key
        raise UserError(f"hydra.launcher.{key}: {str(error).splitlines()[0]}") from error
    limit, delay = 60 * checked.timeout_min, checked.signal_delay_s
    if not 0 < delay < limit:
        raise UserError(
            f"hydra.launcher.signal_delay_s={delay}: must be above 0 and less than"
            f" hydra.launcher.timeout_min={checked.timeout_min}, which is {limit} s"
        )
    values: dict[str, Any] = OmegaConf.to_container(checked)  # type: ignore[assignment]
    del values["_target_"]
    folder, times = values.pop("submitit_folder"), values.pop("max_num_timeout")
    shared = set(OmegaConf.structured(BaseQueueConf))
    executor = AutoExecutor(folder, cluster="slurm", slurm_max_num_timeout=times)
    # A task that fails ends the others, which would wait for it. Since Slurm 22.05 a task does not
    # inherit the processors of its job.
    arguments = ["--kill-on-bad-exit=1"]
    if checked.cpus_per_task:
        arguments.append(f"--cpus-per-task={checked.cpus_per_task}")
    executor.update_parameters(
        slurm_srun_args=arguments,
        **{key if key in shared else f"slurm_{key}": value for key, value in values.items()},
    )
    return executor


def processes(settings: Mapping[str, Any], trainer: DictConfig) -> dict[str, int]:
    """Return nodes and tasks per node, from the trainer's nodes and devices; UserError if they
    differ from the launcher's settings."""
    devices = trainer.devices
    if devices == "auto":
        devices = 1 if trainer.accelerator == "cpu" else settings["gpus_per_node"]
    elif not isinstance(devices, int):
        devices = len(devices)
    counts = {}
    for key, needed, name in (
        ("tasks_per_node", devices, "devices"),
        ("nodes", trainer.num_nodes, "num_nodes"),
    ):
        requested = settings[key]
        if requested is not None and needed is not None and requested != needed:
            raise UserError(
                f"hydra.launcher.{key}={requested}: trainer.{name}={trainer[name]} needs {needed};"
                f" leave hydra.launcher.{key} out"
            )
        counts[key] = requested or needed or 1
    return counts


def executors(
    settings: Mapping[str, Any], runs: Sequence[ScheduledRun]
) -> dict[Path, "AutoExecutor"]:
    """Make the executor of each run; runs with equal numbers of processes share one."""
    made: dict[tuple[int, ...], AutoExecutor] = {}
    by_run = {}
    for run in runs:
        numbers = tuple(processes(settings, run.planned.trainer).values())
        if numbers not in made:
            made[numbers] = executor(settings, run.planned.trainer)
        by_run[run.folder] = made[numbers]
    return by_run


def launch(runs: Sequence[ScheduledRun], executors: Mapping[Path, "AutoExecutor"]) -> list[State]:
    """Submit the runs that no launcher has, wait for all and return their states.

    executors: by the folders of the runs. Raises UserError if Slurm rejects the jobs, and
    Interrupted after Ctrl-C or SIGTERM: the jobs continue.
    """
    with stopping(Stop()) as stop, View.of([run.folder for run in runs], slots=None) as view:
        Jobs(executors, view, stop).work(runs)
    if stop.signal:
        raise Interrupted(
            f"stopped by {stop.signal}; queued Slurm jobs continue (scancel ends them), and the"
            " same command waits for them again"
        )
    return [state(run.folder) for run in runs]


class Jobs:
    """Submit every unfinished run that no launcher has, and wait for all."""

    def __init__(self, executors: Mapping[Path, "AutoExecutor"], view: View, stop: Stop):
        self.executors, self.view, self.stop = executors, view, stop
        self._seen: dict[Path, str] = {}  # run -> the job that has or had it

    def work(self, runs: Sequence[ScheduledRun]) -> None:
        waiting = list(runs)
        while waiting and not self.stop.signal:
            self._poll(waiting)
            self.view.update([run.folder for run in waiting])
            end = time.monotonic() + LOOK
            while waiting and time.monotonic() < end and not self.stop.signal:
                time.sleep(WAKE)

    def _poll(self, waiting: list[ScheduledRun]) -> None:
        taken: list[tuple[ScheduledRun, RunLock]] = []
        for run in list(waiting):
            if run.waits({one.folder for one in waiting}):
                continue
            if state(run.folder).name in ("queued", "running"):
                if (entry := queued(run.folder)) and entry["job"]:
                    self._seen[run.folder] = str(entry["job"])
                continue
            claim = RunLock.take(run.folder, launcher="slurm")
            if claim is None:  # another launcher has just taken it
                continue
            if state_alone(run.folder).name == "running":  # started by hand
                claim.release()
            elif ended := self._ended(run):
                claim.release()
                waiting.remove(run)
                self.view.ended(run.folder, ended)
            else:
                taken.append((run, claim))
            if len(taken) == ARRAY:
                self._submit(taken)
                taken = []
        if taken:
            self._submit(taken)

    def _ended(self, run: ScheduledRun) -> State | None:
        """Return the final state of a run that no launcher has; None if it is still to be done."""
        state = state_alone(run.folder)
        if run.is_done(state):
            return state
        job = self._seen.get(run.folder)
        if job is None:
            return None
        from ablate.study.launch.slurm_job import described

        # Slurm forgets array tasks at once that were cancelled while they waited.
        job_state = described(job).get("JobState", "cancelled or lost")
        return record_exit(run.folder, 1, run.before, reason=f"Slurm ended job {job}: {job_state}")

    def _submit(self, taken: Sequence[tuple[ScheduledRun, RunLock]]) -> None:
        """Submit those runs, each executor's together."""
        from submitit.core.utils import FailedJobError, FailedSubmissionError, JobPaths

        from ablate.study.launch.slurm_job import Job

        executor = self.executors[taken[0][0].folder]
        ours = [each for each in taken if self.executors[each[0].folder] is executor]
        rest = [each for each in taken if self.executors[each[0].folder] is not executor]
        limit = (
            f"its time, hydra.launcher.timeout_min={executor.parameters['time']}, was over"
            " more often than hydra.launcher.max_num_timeout allows"
        )
        folder = JobPaths.get_first_id_independent_folder(executor.folder)
        new = not folder.exists()
        try:
            with _outside(), redirect_stderr(io.StringIO()):
                jobs = executor.submit_array([Job(run.prepare(), limit) for run, _ in ours])
        except (FailedJobError, FailedSubmissionError) as error:
            for _, claim in taken:
                claim.abandon()
            if new:
                shutil.rmtree(folder, ignore_errors=True)
            if self.stop.signal:  # Ctrl-C also reaches sbatch
                return
            raise UserError(f"{NAME}: {' '.join(str(error).split())}") from error
        for (run, claim), job in zip(ours, jobs, strict=True):
            claim.note("slurm", job=job.job_id)
            claim.release(keep_note=True)
            self._seen[run.folder] = job.job_id
        if rest:
            self._submit(rest)


@contextmanager
def _outside() -> Iterator[None]:
    """Hide the variables of an outer Slurm job, so that a job submitted inside it is separate."""
    inner = ("SLURM_", "SLURMD_", "SRUN_", "SUBMITIT_") if "SLURM_JOB_ID" in os.environ else ()
    hidden = {k: v for k, v in os.environ.items() if k.startswith(inner) and k != "SLURM_CONF"}
    for name in hidden:
        del os.environ[name]
    try:
        yield
    finally:
        os.environ.update(hidden)
