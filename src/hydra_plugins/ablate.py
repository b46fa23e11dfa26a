"""The plugins that Hydra finds: it imports this module at every start, so all else is imported
late."""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf

if TYPE_CHECKING:
    from ablate.study.launch.run import Run
    from ablate.study.launch.state import State

Launch: TypeAlias = "Callable[[Sequence[Run]], Sequence[State]]"


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
    """A launcher whose runs are commands that a person could type (ablate.study.launch.jobs)."""

    def __init__(self, **settings: Any):
        self.settings: dict[str, Any] = {
            key: OmegaConf.to_container(value, resolve=True)
            if OmegaConf.is_config(value)
            else value
            for key, value in settings.items()
        }

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        from ablate.study.launch.running import refuse_unknown

        refuse_unknown(config)
        self.hydra_context, self.config = hydra_context, config

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        from ablate.study.launch.jobs import launch_jobs

        first = list(job_overrides[0]) if job_overrides else []
        return launch_jobs(
            self.launcher(first), self.hydra_context, self.config, job_overrides, initial_job_idx
        )

    @abstractmethod
    def launcher(self, overrides: list[str]) -> Launch:
        """The launcher of runs; overrides: of the first run."""


class Local(_Ours):
    """hydra/launcher=local: a process per run on this machine (ablate.study.launch.local)."""

    def setup(self, **more: Any) -> None:
        from ablate.study.launch.local import require

        super().setup(**more)
        require(self.settings)

    def launcher(self, overrides: list[str]) -> Launch:
        from ablate.study.launch.local import launcher

        return launcher(self.settings, self.config)


class Slurm(_Ours):
    """hydra/launcher=slurm: a job of Slurm per run (ablate.study.launch.slurm)."""

    def setup(self, **more: Any) -> None:
        from ablate.study.launch.slurm import require

        require()
        super().setup(**more)

    def launcher(self, overrides: list[str]) -> Launch:
        from ablate.study.launch.slurm import executor, launch

        composed = self.hydra_context.config_loader.load_sweep_config(self.config, overrides)
        return partial(launch, executor=executor(self.settings, composed.trainer))


class Ray(_Ours):
    """hydra/launcher=ray: a task of Ray per run (ablate.study.launch.ray)."""

    def setup(self, **more: Any) -> None:
        from ablate.study.launch.ray import require

        require()
        super().setup(**more)

    def launcher(self, overrides: list[str]) -> Launch:
        from ablate.study.launch.ray import Settings, launcher

        return launcher(
            Settings(**self.settings["ray"], grace_period=self.settings["grace_period"]),
            self.config,
        )
