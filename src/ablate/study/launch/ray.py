"""hydra/launcher=ray: a Ray task for every run, on a cluster whose nodes share output_dir.

The loop is that of the local launcher (slots.py). A task starts its run as a process (forks.py) on
the node that Ray has chosen, and ends it with a checkpoint when Ray cancels the task. Ray's tasks
end with their controller: if that is killed, its runs write a checkpoint.
"""

import os
import platform
import signal
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ablate.cli.command import FULL_ERROR
from ablate.config.parts import require_allowed
from ablate.config.rules import Positive
from ablate.errors import UserError
from ablate.machine.terminal.say import say
from ablate.study.launch.ending import STOPPED
from ablate.study.launch.forks import POLL, Event, Forks, Start
from ablate.study.launch.run import ScheduledRun
from ablate.study.launch.slots import Slots
from ablate.study.launch.state import LOCK, State, held

NAME = "hydra/launcher=ray"
AT_ONCE = 256  # runs submitted to Ray at once; other launchers may take the rest
LONGER = 10.0  # seconds that the controller waits longer than the tasks themselves


def require() -> None:
    """Raise UserError if the package is missing."""
    if find_spec("ray") is None:
        raise UserError(f"{NAME} needs the package ray: pip install ray")


@dataclass(frozen=True)
class RaySettings:
    """The settings of conf/hydra/launcher/ray.yaml: arguments of ray.init and ray.remote; seconds
    of the grace period."""

    init: Mapping[str, Any]
    remote: Mapping[str, Any]
    grace_period: Positive

    def __post_init__(self) -> None:
        require_allowed(type(self), vars(self), "hydra.launcher")


def launch(
    runs: Sequence[ScheduledRun],
    settings: RaySettings,
    *,
    modules: Sequence[str],
    environment: Mapping[str, str],
) -> list[State]:
    """Train every unfinished run, wait for those that other launchers train; return the states.

    environment: additions to that of the nodes. Raises UserError before anything was started, and
    Interrupted after Ctrl-C or SIGTERM, when all runs have stopped.
    """
    with closing(Tasks(settings, modules, environment)) as tasks:
        slots = Slots(
            [{}] * AT_ONCE,
            grace=settings.grace_period + LONGER,
            parent=lambda: tasks,
            launcher="ray",
        )
        return slots.work(runs, shown=None)


class Tasks:
    """Start runs on a cluster; the counterpart of `Forks` for slots.py."""

    def __init__(
        self, settings: RaySettings, modules: Sequence[str], environment: Mapping[str, str]
    ):
        import ray

        _connect(settings.init)
        own = {**environment, FULL_ERROR: os.environ.get(FULL_ERROR, "0")}
        self._more = {"modules": list(modules), "grace": settings.grace_period, "cwd": os.getcwd(),
                      "environment": own}  # fmt: skip
        task: Any = train  # Ray's types do not support keyword arguments
        try:
            self._train = ray.remote(task).options(**settings.remote)
        except (TypeError, ValueError) as error:
            ray.shutdown()
            raise UserError(f"hydra.launcher.ray.remote: {_line(error)}") from error
        _report_missing_resources(settings.remote)
        self._runs: dict[Any, int] = {}  # task -> run
        self._begun: list[int] = []

    def start(self, number: int, run: Start, environment: Mapping[str, str]) -> None:
        assert not environment  # Ray assigns the devices of a run
        task = self._train.remote(run, **self._more)
        self._runs[task] = number
        self._begun.append(number)

    def events(self, seconds: float) -> list[Event]:
        import ray

        begun = [Event(run) for run in self._begun]
        self._begun.clear()
        tasks = list(self._runs)
        ended, _ = ray.wait(tasks, num_returns=len(tasks), timeout=seconds)
        return [*begun, *map(self._end, ended)]

    def _end(self, task: Any) -> Event:
        import ray

        run = self._runs.pop(task)
        try:
            return Event(run, code=ray.get(task))
        except ray.exceptions.TaskCancelledError:
            return Event(run, code=STOPPED, reason="its task of Ray was cancelled")
        except ray.exceptions.RayError as error:
            return Event(
                run, code=1, reason=f"Ray lost it ({type(error).__name__}): {_line(error)}"
            )

    def ask(self, run: int, *, force: bool = False) -> None:
        import ray

        for task in [task for task, its in self._runs.items() if its == run]:
            ray.cancel(task, force=force)

    def kill(self, run: int) -> None:
        self.ask(run, force=True)

    def close(self) -> None:
        import ray

        ray.shutdown()


def _connect(init: Mapping[str, Any]) -> None:
    """Connect to a cluster, or start one here; restore the signal handlers that Ray replaces."""
    import ray

    numbers = [signal.SIGINT, signal.SIGTERM]
    before = {number: signal.getsignal(number) for number in numbers}
    try:
        ray.init(**init)
    except (ConnectionError, RuntimeError, TypeError, ValueError) as error:
        raise UserError(f"{NAME}: hydra.launcher.ray.init: {_line(error)}") from error
    if threading.current_thread() is threading.main_thread():
        for number, handler in before.items():
            signal.signal(number, handler)


def _report_missing_resources(remote: Mapping[str, Any]) -> None:
    """Print a note if no node has the resources; not an error, since a cluster may grow."""
    import ray

    names = {"num_cpus": "CPU", "num_gpus": "GPU"}
    needs = {key: value for key in names if (value := remote.get(key))}
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if not any(all(node.get(names[k], 0) >= n for k, n in needs.items()) for node in nodes):
        wanted = ", ".join(f"hydra.launcher.ray.remote.{k}={n}" for k, n in needs.items())
        say(f"no node of Ray's has {wanted}: the runs wait until one does")


def train(
    run: Start, *, modules: Sequence[str], grace: float, cwd: str, environment: Mapping[str, str]
) -> int:
    """Train a run in a Ray task; return its exit status. grace: seconds to end when cancelled.
    environment: additions to that of the node."""
    if not Path(run.folder).is_dir():
        raise FileNotFoundError(
            f"{run.folder} does not exist on {platform.node()}: output_dir must be on a filesystem"
            " shared by all nodes"
        )
    os.chdir(cwd)
    end = time.monotonic() + grace
    while held(Path(run.folder, LOCK)) and time.monotonic() < end:
        time.sleep(POLL)  # an earlier attempt, whose worker was lost, writes its checkpoint
    forks = Forks(modules, environment={**os.environ, **environment}, grace=grace)
    try:
        forks.start(0, run, {})
        while True:
            for event in forks.events(POLL):
                if event.code is not None:
                    return event.code
    except KeyboardInterrupt:  # Ray cancels tasks this way
        return STOPPED
    finally:
        forks.close()  # this also ends the run


def _line(error: Exception) -> str:
    """Return the last line of an error, its message; the others are the traceback."""
    return (str(error).strip().splitlines() or [type(error).__name__])[-1]
