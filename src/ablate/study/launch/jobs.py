"""Adapter between Hydra and our launchers: turn Hydra's jobs into command lines and output folders,
and the states of runs into Hydra's results."""

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from hydra.core.utils import JobReturn, JobStatus
from hydra.types import HydraContext
from omegaconf import DictConfig

from ablate.config.check import check_direction, value_of
from ablate.config.composition import Composition, as_typed, complete
from ablate.config.overrides import key_of, parse_all, value_text
from ablate.config.run_id import NO_DATA, content, digest, folder_name
from ablate.errors import RunFailed, UserError
from ablate.study.launch.run import Run
from ablate.study.launch.state import State

# Overrides that set how a sweep is run, which a single run does not need.
OF_SWEEPS = re.compile(r"\+{0,2}hydra[./](launcher|sweeper|sweep|mode|run)\b")
RUN_DIR = "run_dir"


def launch_jobs(
    launch: Callable[[Sequence[Run]], Sequence[State]],
    hydra_context: HydraContext,
    config: DictConfig,
    job_overrides: Sequence[Sequence[str]],
    first: int,
) -> list[JobReturn]:
    """Implement Hydra's `Launcher.launch` by `launch`, which takes runs and returns states."""
    check_direction(config.hydra.sweeper, config.task)
    if not job_overrides:
        return []
    runs = []
    for number, overrides in enumerate(job_overrides, first):
        path = folder(hydra_context, config, overrides, number)
        runs.append(Run(path, arguments(config, overrides, path)))
    return [
        job_return(overrides, run.folder, state)
        for overrides, run, state in zip(job_overrides, runs, launch(runs), strict=True)
    ]


def folder(
    hydra_context: HydraContext, config: DictConfig, overrides: Sequence[str], number: int
) -> Path:
    """Return the folder of a run: from the sweeper's override, else from its composition. A run
    that will be rejected, in its process, has the folder of its values."""
    for override in parse_all(overrides):
        if override.key_or_group == RUN_DIR:
            return Path(str(override.value())).absolute()
    composed = hydra_context.config_loader.load_sweep_config(config, list(overrides))
    try:
        complete(composed, composed.hydra)
        return Composition(composed).folder.absolute()
    except UserError:
        name = folder_name(None, digest(content(composed), NO_DATA, {}))
        return Path(config.hydra.sweep.dir, name).absolute()


def arguments(config: DictConfig, overrides: Sequence[str], path: Path) -> list[str]:
    """Return the arguments of `python -m ablate` that train one run of a sweep by itself."""
    all_overrides = [*as_typed(config.hydra.overrides.hydra), *overrides]
    of_run = [override for override in all_overrides if not OF_SWEEPS.match(override)]
    of_run = [override for override in of_run if key_of(override) != RUN_DIR]
    return [*_flags(config), *of_run, "hydra.mode=RUN", f"{RUN_DIR}={value_text(str(path))}"]


def _flags(config: DictConfig) -> Iterator[str]:
    for source in config.hydra.runtime.config_sources:
        if source.provider == "command-line":
            yield from ("--config-dir", source.path)
    if config.hydra.job.config_name != "config":
        yield from ("--config-name", config.hydra.job.config_name)


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
