"""Callbacks of every run: random streams, accumulated gradients, losses that are not finite."""

from typing import Any

import lightning.pytorch as L
import torch
from lightning.pytorch.callbacks import Callback
from torch import Tensor

from ablate.errors import RunFailed
from ablate.random.seeding import derive, seed_torch
from ablate.task import Task
from ablate.task.accumulation import Accumulated

NEVER = torch.iinfo(torch.int64).max


class RandomStreams(Callback):
    """Set the random streams of the model for each batch.

    Random numbers of other code, such as a custom component, depend on (seed, batch, process): a
    resumed run repeats them, and validation in between does not change them.
    """

    def on_train_batch_start(self, trainer: Any, task: Any, batch: Any, number: int) -> None:
        task.draws.keys = keys_of_batch(task, number).to(task.device)
        seed_torch(derive(task.seed, "step", number, task.data.share().rank), task.device)

    def on_train_batch_end(self, trainer: Any, task: Any, *_: Any) -> None:
        task.draws.keys = None


def keys_of_batch(task: Task, number: int) -> Tensor:
    """The keys of the model's random streams for a training batch, counted from 0."""
    step, part = divmod(number, task.trainer.accumulate_grad_batches)
    rank, world = task.data.share()
    share = task.data.batch_size // world  # as `Order.slice` cuts a batch
    return task.draws.of_batch(task.seed, step, part * task.data.batch_size + rank * share)


class Accumulation(Callback):
    """Count the targets of each optimizer step, and correct its gradients by them."""

    def on_train_batch_start(self, trainer: Any, task: Any, batch: Any, number: int) -> None:
        if number % trainer.accumulate_grad_batches == 0:
            task.step_so_far = Accumulated(trainer.accumulate_grad_batches)

    def on_before_optimizer_step(self, trainer: Any, task: Any, optimizer: Any) -> None:
        if task.step_so_far.uneven:
            for parameter in task.model.parameters():
                if parameter.grad is not None:
                    parameter.grad.mul_(task.step_so_far.correction)


class FiniteLosses(Callback):
    """Fail the run at the first loss that is NaN or infinite. A GPU is synchronized only before
    values are logged, before a validation and before a checkpoint."""

    def __init__(self) -> None:
        self.first_bad_step = torch.tensor(NEVER)

    def on_train_batch_end(
        self, trainer: Any, task: Any, outputs: Any, batch: Any, number: int
    ) -> None:
        step, part = divmod(number, trainer.accumulate_grad_batches)
        bad_step = torch.where(outputs["loss"].isfinite(), NEVER, step)
        self.first_bad_step = torch.minimum(self.first_bad_step.to(bad_step.device), bad_step)
        last = part + 1 == trainer.accumulate_grad_batches
        if last and trainer.global_step % trainer.log_every_n_steps == 0:
            self.require(trainer)

    def on_validation_start(self, trainer: L.Trainer, *_: Any) -> None:
        self.require(trainer)

    def require(self, trainer: L.Trainer) -> None:
        """RunFailed if any loss so far, in any process, was NaN or infinite."""
        first = self.first_bad_step.to(trainer.strategy.root_device)
        # If only one process failed, the others would wait.
        step = int(trainer.strategy.reduce(first, reduce_op="min"))
        if step < NEVER:
            raise not_finite(step)


def not_finite(step: int) -> RunFailed:
    """The error of a training that diverged at `step`, with remedies."""
    return RunFailed(
        f"the loss is infinite or nan at step {step}: try a smaller optimizer.lr, a longer "
        f"schedule.warmup, model.norm=pre or trainer.gradient_clip_val=1; the last good "
        f"checkpoint is kept"
    )
