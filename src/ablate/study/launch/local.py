"""hydra/launcher=local: a worker process per run on this machine, several at once.

The state of a run is read from its folder. Two launchers may work on the same runs, here or on two
machines that share the folder: each takes runs that the other has not, and waits for the rest.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

from omegaconf import DictConfig, OmegaConf

from ablate.config.keys import targets
from ablate.config.overrides import MOST
from ablate.config.parts import require_allowed
from ablate.config.rules import Int, Positive
from ablate.errors import UserError
from ablate.study.launch.forks import Forks
from ablate.study.launch.run import ScheduledRun
from ablate.study.launch.slots import Slots
from ablate.study.launch.state import State

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
AT_MOST = 4  # default limit of runs at once: each has a model and its data in memory


@dataclass(frozen=True)
class LocalSettings:
    """The settings of conf/hydra/launcher/local.yaml."""

    max_parallel_runs: Annotated[int, Int(1, MOST)] | Literal["auto"]
    gpus_per_run: Annotated[int, Int(0)]
    timeout: Positive | None
    retries: Annotated[int, Int(0)]
    fail_fast: bool
    grace_period: Positive

    def __post_init__(self) -> None:
        require_allowed(type(self), vars(self), "hydra.launcher")

    def at_once(self, environment: Mapping[str, str]) -> int:
        """Return the number of parallel runs. auto: as many as `gpus_per_run` allows; one if every
        run sees all GPUs; without a GPU one per core (at most `AT_MOST`), as two cores that share a
        run of a small model are slower."""
        if isinstance(self.max_parallel_runs, int):
            return self.max_parallel_runs
        gpus = len(_visible(environment))
        if self.gpus_per_run:
            return max(1, gpus // self.gpus_per_run)
        return 1 if gpus else min(_cores(), AT_MOST)


def require(settings: Mapping[str, Any]) -> None:
    """Raise UserError for settings that have no meaning, or that need more GPUs than there are."""
    checked = LocalSettings(**settings)
    gpus(checked.at_once(os.environ), checked.gpus_per_run, os.environ)


def modules_of(config: DictConfig) -> list[str]:
    """Return the modules that runs of a composition import in addition to those that all import."""
    composition = OmegaConf.masked_copy(config, [str(key) for key in config if key != "hydra"])
    named = targets(OmegaConf.to_container(composition)).values()
    return sorted({module for target in named if (module := target.rpartition(".")[0])})


def launch(
    runs: Sequence[ScheduledRun],
    settings: LocalSettings,
    *,
    modules: Sequence[str],
    environment: Mapping[str, str],
) -> list[State]:
    """Train every unfinished run, wait for those that other launchers train; return the states.

    modules: imports of the runs in addition to those of all runs. environment: that of the runs.
    Raises UserError before anything was started, and Interrupted after Ctrl-C or SIGTERM, when all
    runs have stopped.
    """
    slots = settings.at_once(environment)
    devices = gpus(slots, settings.gpus_per_run, environment)
    environment = {**environment, **threads(slots, environment)}
    parent = partial(Forks, modules, environment=environment, grace=settings.grace_period)
    return Slots(
        devices,
        timeout=settings.timeout,
        retries=settings.retries,
        fail_fast=settings.fail_fast,
        grace=settings.grace_period,
        parent=parent,
        launcher="local",
    ).work(runs, shown=slots)


def threads(slots: int, environment: Mapping[str, str]) -> dict[str, str]:
    """Divide the cores between the slots, unless the user has set the number of threads."""
    if environment.get("OMP_NUM_THREADS"):
        return {}
    share = str(max(1, _cores() // slots))
    return {name: share for name in THREADS if not environment.get(name)}


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def gpus(slots: int, each: int, environment: Mapping[str, str]) -> list[dict[str, str]]:
    """Return for each slot the environment that shows its runs only their GPUs."""
    if not each:
        return [{}] * slots
    names = _visible(environment)
    if slots * each > len(names):
        raise UserError(
            f"hydra.launcher.max_parallel_runs={slots} with gpus_per_run={each} needs"
            f" {slots * each} GPUs, and this machine lets ablate see {len(names)}"
        )
    shares = [names[slot * each : (slot + 1) * each] for slot in range(slots)]
    return [{"CUDA_VISIBLE_DEVICES": ",".join(share)} for share in shares]


def _visible(environment: Mapping[str, str]) -> list[str]:
    """Return the GPUs that this process may see, as CUDA_VISIBLE_DEVICES names them."""
    import torch

    gpus = torch.cuda.device_count()
    outer = environment.get("CUDA_VISIBLE_DEVICES")
    names = [str(n) for n in range(gpus)] if outer is None else [*filter(None, outer.split(","))]
    # Of instances of a divided GPU (MIG) a process uses one, so torch counts one.
    return names if gpus and names and names[0].startswith("MIG-") else names[:gpus]
