"""Checkpoints that survive a kill at any moment, and resuming from them.

    last.ckpt           the newest state of training; previous.ckpt the one before it
    best.safetensors    the weights with the best validation so far

ablate.run_files.checkpoint_io documents how the files are written, and verified when they are read.
"""

import math
import signal
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import lightning.pytorch as L
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.plugins import TorchCheckpointIO
from lightning.pytorch.strategies.launchers import _SubprocessScriptLauncher
from torch import Tensor, nn

from ablate.errors import Interrupted
from ablate.machine.stop import StopOfRun
from ablate.machine.terminal.say import say
from ablate.model.layers.stack import kernels_ran, note_kernels
from ablate.run_files import BEST, LAST, PREVIOUS, CorruptFile, best_weights
from ablate.run_files.checkpoint_io import (
    read_state,
    remove_unused_shards,
    write_state,
    write_weights,
)
from ablate.task import Task
from ablate.task.optimizing import groups_of
from ablate.training.average import Average, averages, by_optimizer
from ablate.training.steps import FiniteLosses, not_finite

MEASURED = "while its best weights were measured"


class Flushed(TorchCheckpointIO):
    """Replace checkpoints atomically, list their checksums, and flush both to disk.

    Lightning's own plugin goes through the system's temporary folder, which may be too small, and
    leaves a file there when the process is killed.
    """

    def __init__(self, run_id: str | None):
        super().__init__()
        self.run_id = run_id

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None
    ) -> None:
        if "optimizer_states" in checkpoint:
            write_state(Path(path), checkpoint, self.run_id)
        else:
            write_weights(Path(path), checkpoint["state_dict"], self.run_id)

    def load_checkpoint(self, path: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        return read_state(Path(path))


class Checkpoints(Callback):
    """Save every `every` steps, after every validation and at the end; and, when a signal requests
    a stop, after the batch, then raise Interrupted.

    A step followed by a validation is saved after the validation, because Lightning skips the
    validation of the step it resumes from; in the middle of a validation so that it is repeated.
    run_id: listed with the checksums of the files, if it is set. also: other steps to save after.
    trunk: the run and the step at whose state this training began (ablate.training.trunk).
    """

    def __init__(self, folder: Path, *, every: int, model: nn.Module):
        self.folder, self.every, self.model = folder, every, model
        self.run_id: str | None = None
        self.stop = StopOfRun()
        self.losses = FiniteLosses()
        self.average: Average | None = None
        self.best: float | None = None
        self.best_step = 0
        self.validated_step = self.saved_step = -1
        self.also: Collection[int] = ()
        self.trunk: dict[str, Any] | None = None
        self._validating = False

    def state_dict(self) -> dict[str, Any]:
        return {
            "best": self.best,
            "best_step": self.best_step,
            "validated": self.validated_step,
            "kernels": kernels_ran(self.model),
            "trunk": self.trunk,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.best, self.best_step = state_dict["best"], state_dict["best_step"]
        self.validated_step = state_dict["validated"]
        note_kernels(self.model, state_dict["kernels"])
        self.trunk = state_dict.get("trunk") or self.trunk

    def setup(self, trainer: Any, task: Any, stage: str) -> None:
        trainer.strategy.checkpoint_io = Flushed(self.run_id)
        if trainer.is_global_zero:
            self.folder.mkdir(parents=True, exist_ok=True)
            for left_by_a_kill in self.folder.glob("*.tmp"):
                left_by_a_kill.unlink()
            remove_unused_shards(self.folder)

    def on_train_start(self, *_: Any) -> None:
        self.stop.moment = None

    def on_train_end(self, trainer: Any, task: Any) -> None:
        # The request to stop may have come after the check of the last step.
        if self._stop_requested(trainer) or self.saved_step != trainer.global_step:
            self._save_last(trainer, task)
        self.leave_training(trainer)

    def leave_training(self, trainer: L.Trainer) -> None:
        """From here on a stop saves nothing, so that it waits for nothing; several processes end
        together, after a batch."""
        if trainer.world_size > 1:
            self.stop.moment = None
        else:
            self.stop.enter(MEASURED)

    def on_exception(self, trainer: Any, task: Any, exception: BaseException) -> None:
        launcher = trainer.strategy.launcher
        if isinstance(exception, Interrupted) and isinstance(launcher, _SubprocessScriptLauncher):
            launcher.kill(signal.SIGTERM)  # the other processes, which would wait for this one

    def _stop_requested(self, trainer: L.Trainer) -> bool:
        """Whether any process was asked to stop. All stop after the same step, or they hang."""
        stop = bool(self.stop.signal)
        several = trainer.world_size > 1
        if several and trainer.strategy.reduce_boolean_decision(stop, all=False) and not stop:
            self.stop.signal = "another process"
        return bool(self.stop.signal)

    def on_train_batch_end(self, trainer: Any, task: Any, *_: Any) -> None:
        loop = trainer.fit_loop.epoch_loop
        if loop._should_accumulate():  # half of an optimizer step cannot be resumed
            return
        assert trainer.val_check_batch is not None
        if (loop.batch_idx + 1) % int(trainer.val_check_batch) == 0:
            return  # on_validation_end saves
        step = trainer.global_step
        if self._stop_requested(trainer) or step % self.every == 0 or step in self.also:
            self._save_last(trainer, task)

    def on_validation_batch_end(self, trainer: Any, task: Any, *_: Any) -> None:
        if not self._stop_requested(trainer):
            return
        if trainer.state.fn != "fit":
            self.stop.interrupt(MEASURED)
        self._validating = True
        self._save_last(trainer, task)

    on_test_batch_end = on_validation_batch_end  # type: ignore[assignment]

    def on_save_checkpoint(self, trainer: Any, task: Any, checkpoint: dict[str, Any]) -> None:
        if self._validating:  # as Lightning sees a validation that stopped in its first batch
            progress = checkpoint["loops"]["fit_loop"]["epoch_loop.val_loop.batch_progress"]
            for count in ("total", "current"):
                progress[count] = {"ready": 1, "started": 1, "processed": 0, "completed": 0}

    def on_validation_end(self, trainer: Any, task: Any) -> None:
        fitting = trainer.state.fn == "fit"
        if not fitting and trainer.global_step == self.validated_step:
            return
        value, step = float(trainer.callback_metrics[task.metric]), trainer.global_step
        require_finite(value, step)
        self.validated_step = step
        if self.best is None or (value < self.best if task.mode == "min" else value > self.best):
            self.best, self.best_step = value, step
            exchange = self.average.exchange if self.average else lambda *_: None
            exchange(trainer, task)
            self._write(trainer, task, BEST, weights_only=True)
            exchange(trainer, task)
        if fitting:
            self._save_last(trainer, task)

    def _save_last(self, trainer: L.Trainer, task: L.LightningModule) -> None:
        self._write(trainer, task, LAST, weights_only=False)
        self.saved_step = trainer.global_step
        if self.stop.signal:
            raise Interrupted(
                f"stopped by {self.stop.signal} after step {trainer.global_step}; "
                f"the same command resumes from there"
            )

    def _write(
        self, trainer: L.Trainer, task: L.LightningModule, name: str, *, weights_only: bool
    ) -> None:
        """Replace a file by the current state; RunFailed if a loss or a weight is not finite."""
        assert isinstance(task, Task)
        self.losses.require(trainer)
        for parameter in task.parameters():
            require_finite(parameter.detach().sum().item(), trainer.global_step)
        trainer.save_checkpoint(self.folder / name, weights_only=weights_only)


def keep(run_dir: Path, wanted: Literal["all", "last", "best", "none"]) -> None:
    """Remove the checkpoints of a finished run that checkpoint_keep does not name."""
    if wanted == "all":
        return
    folder = run_dir / "checkpoints"
    unwanted = [folder / PREVIOUS]
    unwanted += [folder / LAST] if wanted != "last" else []
    unwanted += [best_weights(run_dir)] if wanted == "none" else []
    try:
        for path in unwanted:
            path.unlink(missing_ok=True)
        remove_unused_shards(folder)
    except OSError as error:  # the run is finished all the same
        say(f"checkpoint_keep={wanted}: {error.filename} cannot be removed ({error.strerror})")


@dataclass(frozen=True)
class Sizes:
    """Bytes of the best weights, and of a state of training."""

    weights: int
    state: int

    @property
    def at_most(self) -> int:
        """While a state is written, the two before it are there."""
        return self.weights + 3 * self.state

    def kept(self, wanted: str) -> int:
        """By checkpoint_keep."""
        states = {"last": 1, "all": 2}.get(wanted, 0)
        return (self.weights if wanted != "none" else 0) + states * self.state


def sizes(task: Task) -> Sizes:
    """Those of a task on the meta device, about: an optimizer that does not work there counts as
    Adam, with two numbers for each parameter."""
    weights = sum(value.nbytes for value in task.state_dict().values())
    trained = [p for p in task.model.parameters() if p.requires_grad]
    groups, alike = groups_of(task), Counter[Tensor]()
    for group in groups:  # parameters of one shape have states of one size
        firsts: dict[object, Tensor] = {}
        for parameter in group["params"]:
            alike[firsts.setdefault((parameter.shape, parameter.dtype), parameter)] += 1
        group["params"] = [*firsts.values()]
    try:
        optimizer: Any = task.make_optimizer(groups)
        if by_optimizer(task):
            optimizer.train()
        for group in optimizer.param_groups:
            group["fused"] = False
        for parameter in alike:
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        moments = sum(
            alike.get(parameter, 1) * value.nbytes
            for parameter, state in optimizer.state.items()
            for value in state.values()
            if isinstance(value, Tensor)
        )
    except Exception:  # of a custom optimizer: any
        moments = 2 * sum(parameter.nbytes for parameter in trained)
    for parameter in alike:
        parameter.grad = None
    if averages(task):
        moments += sum(value.nbytes for value in task.model.state_dict().values())
    return Sizes(weights, weights + moments)


def require_finite(value: float, step: int) -> None:
    """RunFailed when a measure or a weight is NaN or infinite."""
    if not math.isfinite(value):
        raise not_finite(step)


def resumable(folder: Path, run_id: str | None) -> tuple[Path | None, dict[str, Any], list[str]]:
    """Return the newest readable checkpoint, its content, and a line about each unreadable one.

    Raises UserError for one of another run, and if there are no checksums to verify them by.
    """
    problems = []
    for name in (LAST, PREVIOUS):
        path = folder / name
        if not path.exists():
            continue
        try:
            state = read_state(path, run_id)
        except CorruptFile as error:
            problems.append(f"{error}; it is not used")
        else:
            return path, state, problems
    return None, {}, problems
