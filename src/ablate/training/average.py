"""Averages of the weights: exponential (task.ema), or that of a schedule-free optimizer."""

from typing import Any

import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.trainer.states import TrainerFn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from ablate.task import Task


def by_optimizer(task: Task) -> bool:
    """Whether the optimizer averages the weights itself."""
    return getattr(getattr(task.make_optimizer, "func", None), "averages", False)


def averages(task: Task) -> bool:
    """Whether the run has an `Average`."""
    return task.ema is not None or by_optimizer(task)


class Average(Callback):
    """Average the weights of the model after each step. Validation and test use the average, and
    the best weights are its weights."""

    def __init__(self, task: Task) -> None:
        self.by_optimizer, self.steps = by_optimizer(task), 0
        decay = get_ema_multi_avg_fn(task.ema or 0.0)
        self.average = AveragedModel(task.model, multi_avg_fn=decay).requires_grad_(False).eval()

    def state_dict(self) -> dict[str, Any]:
        return self.average.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.average.load_state_dict(state_dict)

    def _place(self, trainer: Any, task: Any) -> None:
        trainer.precision_plugin.convert_module(self.average).to(task.device)

    def on_train_start(self, trainer: Any, task: Any) -> None:
        self._place(trainer, task)
        self.steps = trainer.global_step
        if self.by_optimizer:
            trainer.optimizers[0].train()

    def on_train_batch_end(self, trainer: Any, task: Any, *_: Any) -> None:
        if not self.by_optimizer and trainer.global_step > self.steps:
            self.steps = trainer.global_step
            self.average.update_parameters(task.model)
        elif trainer.global_step == trainer.max_steps:  # before the last state is saved
            self.on_train_end(trainer, task)

    def on_train_end(self, trainer: Any, task: Any) -> None:
        if self.by_optimizer:  # the last step may not be validated in training
            self._copy_from_optimizer(trainer, task)

    def on_validation_start(self, trainer: Any, task: Any) -> None:
        self._place(trainer, task)
        if self.by_optimizer and trainer.state.fn == TrainerFn.FITTING:
            self._copy_from_optimizer(trainer, task)

    @torch.no_grad()
    def _copy_from_optimizer(self, trainer: Any, task: Any) -> None:
        """Copy the optimizer's weights for evaluation to the average; training goes on from the
        weights as they are, to the bit."""
        trained = [parameter.clone() for parameter in task.model.parameters()]
        trainer.optimizers[0].eval()
        self.average.update_parameters(task.model)
        trainer.optimizers[0].train()
        for parameter, value in zip(task.model.parameters(), trained, strict=True):
            parameter.copy_(value)

    def on_test_start(self, trainer: Any, task: Any) -> None:
        self._place(trainer, task)

    def exchange(self, trainer: Any, task: Any, *_: Any) -> None:
        """Exchange the model of the task and its average, before and after an evaluation."""
        task.model, self.average.module = self.average.module, task.model

    on_validation_batch_start = on_validation_batch_end = exchange  # type: ignore[assignment]
    on_test_batch_start = on_test_batch_end = exchange  # type: ignore[assignment]
