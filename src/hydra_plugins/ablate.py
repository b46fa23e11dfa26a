"""What Hydra finds of ours: it imports this module at every start, so all else is imported late."""

from collections.abc import Mapping, Sequence
from typing import Any

from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig


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


class Local(Launcher):
    """hydra/launcher=local: a process per run on this machine (ablate.study.local)."""

    def __init__(self, **settings: Any):
        self.settings = settings

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        self.hydra_context, self.config = hydra_context, config

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        from ablate.study.jobs import launch_jobs

        return launch_jobs(
            self.settings, self.hydra_context, self.config, job_overrides, initial_job_idx
        )
