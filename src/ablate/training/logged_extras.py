"""Logger output besides metrics, on request: attention maps at every validation
(`log_maps`), and the predictions of the best weights (`log_predictions`)."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import lightning.pytorch as L
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.trainer.states import TrainerFn

from ablate.errors import UserError
from ablate.logger import RunLogger
from ablate.task import Task
from ablate.task.attention import attention_figures
from ablate.task.presenter import Presenter
from ablate.training.average import Average


class AttentionMaps(Callback):
    """Log the maps of the first validation example after every validation, of the weights that
    were validated."""

    def __init__(self, logger: RunLogger) -> None:
        self.logger = logger

    def on_validation_end(self, trainer: Any, task: Any) -> None:
        if trainer.state.fn != TrainerFn.FITTING:  # those of the best weights come at the end
            return
        averages = [each for each in trainer.callbacks if isinstance(each, Average)]
        for average in averages:
            average.exchange(trainer, task)
        with TemporaryDirectory() as folder, trainer.precision_plugin.forward_context():
            for path in attention_figures(task, Path(folder)):
                self.logger.figure(path.stem, path, step=trainer.global_step)
        for average in averages:
            average.exchange(trainer, task)


def require_extras(logger: RunLogger, task: Task, trainer: L.Trainer) -> None:
    """Raise UserError for extras that this model, task or number of processes does not have."""
    asked = {"log_maps": logger.log_maps, "log_predictions": logger.log_predictions}
    for key in (key for key, wanted in asked.items() if wanted and trainer.world_size > 1):
        raise UserError(f"logger.{key}=true: works in one process, not in {trainer.world_size}")
    if logger.log_maps and not any(hasattr(m, "recorded") for m in task.model.modules()):
        raise UserError("logger.log_maps=true: this model has no attention maps")
    if logger.log_predictions and task.presenter.predictions is Presenter.predictions:
        raise UserError(
            f"logger.log_predictions=true: {type(task).__name__} has no per-example loss"
        )
