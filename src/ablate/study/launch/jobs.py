"""Adapter between sweepers of Hydra and our launchers: jobs become planned runs, states of runs
Hydra's results."""

from collections.abc import Callable, Sequence
from pathlib import Path

from hydra.core.utils import JobReturn, JobStatus
from hydra.experimental.callback import Callback
from hydra.types import HydraContext
from omegaconf import DictConfig

from ablate.config.check import check_alone, check_direction, value_of
from ablate.config.composition import Composition, finalize
from ablate.config.keys import interpolations, locate, to_dict
from ablate.config.run_id import NO_DATA, counted_keys, digest, folder_name
from ablate.errors import RunFailed, UserError
from ablate.run_files import RESULT, write_json
from ablate.study.launch.run import ScheduledRun
from ablate.study.launch.state import State, state_alone
from ablate.study.plan.planned_run import Command, PlannedRun, Resolved

Launch = Callable[[Sequence[ScheduledRun]], Sequence[State]]
OF_JOBS = ("on_run_start", "on_run_end", "on_job_start", "on_job_end")


def refuse_of_jobs(config: DictConfig, launcher: str) -> None:
    """Raise UserError for keys of Hydra's jobs, since a run is not one."""
    hydra = config.hydra
    wrong = [f"hydra.job.chdir={hydra.job.chdir}"] if hydra.job.chdir else []
    if hydra.output_subdir is not None:
        wrong.append(f"hydra.output_subdir={hydra.output_subdir}")
    for name, node in hydra.callbacks.items():
        kind = locate(node._target_)
        if any(getattr(kind, hook) is not getattr(Callback, hook) for hook in OF_JOBS):
            wrong.append(f"hydra.callbacks.{name}")
    if wrong:
        raise UserError(
            f"{', '.join(wrong)}: not supported with hydra/launcher={launcher}, which starts runs"
            " without Hydra; use hydra/launcher=basic"
        )


def launch_jobs(
    launch: Launch,
    context: HydraContext,
    config: DictConfig,
    job_overrides: Sequence[Sequence[str]],
) -> list[JobReturn]:
    """Implement Hydra's `Launcher.launch`, for sweepers of Hydra, by `launch`, which takes runs and
    returns states."""
    check_direction(config.hydra.sweeper, config.task)
    command = Command.of(config)
    runs: list[ScheduledRun] = []
    folders: list[Path] = []
    for overrides in job_overrides:
        composed = context.config_loader.load_sweep_config(config, list(overrides))
        try:
            runs.append(_run(composed, command, overrides))
            folders.append(runs[-1].folder)
        except UserError as error:
            folders.append(_rejected(config, composed, error))
    found = launch(runs) if runs else ()
    states = {run.folder: state for run, state in zip(runs, found, strict=True)}
    return [
        job_return(overrides, folder, states.get(folder) or state_alone(folder))
        for overrides, folder in zip(job_overrides, folders, strict=True)
    ]


def _run(composed: DictConfig, command: Command, overrides: Sequence[str]) -> ScheduledRun:
    finalize(composed, composed.hydra)
    with interpolations():
        check_alone(to_dict(composed.study), command.arguments(overrides))
    composition = Composition(composed)
    folder = composition.folder.absolute()
    planned = PlannedRun(
        arm=composition.cfg.study.arm or "",
        seed=composition.cfg.seed,
        run_id=composition.id,
        folder=folder.name,
        kind="run",
        overrides=tuple(overrides),
        command=command,
        resolved=Resolved(composed),
    )
    return ScheduledRun(folder, planned)


def _rejected(config: DictConfig, composed: DictConfig, error: UserError) -> Path:
    """Record why a job is rejected, in a folder that is named after its values."""
    name = folder_name(None, digest(counted_keys(to_dict(composed)), NO_DATA, {}))
    folder = Path(config.hydra.sweep.dir, name).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / RESULT, {"status": "rejected", "error": str(error), "metrics": {}})
    return folder


def job_return(overrides: Sequence[str], path: Path, state: State) -> JobReturn:
    """Return the metric of a finished run, which search sweepers optimize; else the error."""
    ended = JobReturn(overrides=list(overrides), working_dir=str(path), task_name="ablate")
    if state.name == "finished":
        ended.status = JobStatus.COMPLETED
        ended.return_value = value_of(state.result)
    else:
        ended.status = JobStatus.FAILED
        kind = UserError if state.name == "rejected" else RunFailed
        ended.return_value = kind(f"{path.name}: {state.name}; {state.detail}")
    return ended
