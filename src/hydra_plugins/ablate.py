"""The plugins that Hydra finds: it imports this module at every start, so all else is imported
late."""

import os
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

if TYPE_CHECKING:
    from ablate.study.launch.run import ScheduledRun
    from ablate.study.launch.state import State


class Ablation(Sweeper):
    """hydra/sweeper=ablation: a study, or every combination of values (ablate.study.sweeper)."""

    def __init__(self, params: Mapping[str, str] | None = None):
        self.params = params  # read from the config, as everything else that is asked

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        self.command = config, hydra_context, task_function

    def sweep(self, arguments: list[str]) -> Any:
        from ablate.study.sweeper import sweep

        config, context, task = self.command
        return sweep(config, arguments, context, task)


class _Ours(Launcher):
    """A launcher whose runs are processes with a planned configuration (ablate.study.launch)."""

    def __init__(self, **settings: Any):
        from ablate.config.keys import plain

        self.settings = {key: plain(value) for key, value in settings.items()}

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        from ablate.study.launch.jobs import refuse_of_jobs
        from ablate.study.launch.running import refuse_unknown

        refuse_unknown(config)
        refuse_of_jobs(config, type(self).__name__.lower())
        os.environ.update(config.hydra.job.env_set)  # which the runs inherit
        self.hydra_context, self.config = hydra_context, config

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        """Train jobs of a sweeper of Hydra."""
        from ablate.study.launch.jobs import launch_jobs

        return launch_jobs(self.train, self.hydra_context, self.config, job_overrides)

    @abstractmethod
    def train(self, runs: "Sequence[ScheduledRun]") -> "Sequence[State]":
        """Train planned runs, at least one."""


class Local(_Ours):
    """hydra/launcher=local: a process per run on this machine (ablate.study.launch.local)."""

    def setup(self, **more: Any) -> None:
        from ablate.study.launch.local import require

        super().setup(**more)
        require(self.settings)

    def train(self, runs: "Sequence[ScheduledRun]") -> "Sequence[State]":
        from ablate.study.launch.local import LocalSettings, launch, modules_of

        settings = LocalSettings(**self.settings)
        return launch(runs, settings, modules=modules_of(self.config), environment=os.environ)


class Slurm(_Ours):
    """hydra/launcher=slurm: a job of Slurm per run (ablate.study.launch.slurm)."""

    def setup(self, **more: Any) -> None:
        from ablate.study.launch.slurm import require

        require()
        super().setup(**more)

    def train(self, runs: "Sequence[ScheduledRun]") -> "Sequence[State]":
        from ablate.study.launch.slurm import executors, launch

        return launch(runs, executors(self.settings, runs))


class Ray(_Ours):
    """hydra/launcher=ray: a task of Ray per run (ablate.study.launch.ray)."""

    def setup(self, **more: Any) -> None:
        from ablate.study.launch.ray import require

        require()
        super().setup(**more)

    def train(self, runs: "Sequence[ScheduledRun]") -> "Sequence[State]":
        from ablate.study.launch.local import modules_of
        from ablate.study.launch.ray import RaySettings, launch

        settings = RaySettings(**self.settings["ray"], grace_period=self.settings["grace_period"])
        environment = {str(name): str(v) for name, v in self.config.hydra.job.env_set.items()}
        modules = modules_of(self.config)
        return launch(runs, settings, modules=modules, environment=environment)
