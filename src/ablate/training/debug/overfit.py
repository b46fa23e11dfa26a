"""debug=overfit: trains on one batch, whose loss must fall."""

from typing import Any

import lightning.pytorch as L
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities import rank_zero_only as on_first_process

from ablate.config.rules import Fraction
from ablate.data import Batch
from ablate.errors import RunFailed
from ablate.machine.terminal.say import say
from ablate.task import Task
from ablate.task.accumulation import Accumulated, total


class Overfit(Callback):
    """Fails the run unless the loss of the batch ends at `ratio` of its first value, or below.

    Both losses are measured in evaluation mode: dropout would hide a small fall, or make one.
    """

    def __init__(self, *, ratio: Fraction):
        self.ratio = ratio
        self.batch: Batch = {}
        self.first = self.last = 0.0

    def setup(self, trainer: Any, task: Any, stage: str) -> None:
        task.data.one_batch = True

    def on_train_batch_start(self, trainer: Any, task: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == 0:
            self.batch = batch
            self.first = self._loss(trainer, task)

    def on_train_end(self, trainer: Any, task: Any) -> None:
        self.last = last = self._loss(trainer, task)
        change = "fell" if last < self.first else "stayed" if last == self.first else "rose"
        line = f"debug=overfit: the loss of one batch {change} from {self.first:.4g} to {last:.4g}"
        line += f" in {trainer.global_step} steps"
        most = self.ratio * self.first
        if not last <= most:  # true for NaN as well
            raise RunFailed(f"{line}; it has to fall to {most:.4g} (debug.ratio={self.ratio:g})")
        on_first_process(say)(line)

    def notes(self) -> dict[str, Any]:
        """Its entry in result.json."""
        return {"one_batch": {"first_loss": self.first, "last_loss": self.last}}

    @torch.no_grad()
    def _loss(self, trainer: L.Trainer, task: L.LightningModule) -> float:
        """The loss of the batch, over all processes, without dropout."""
        assert isinstance(task, Task)
        task.step_so_far = Accumulated(1)
        task.eval()
        with trainer.precision_plugin.train_step_context():
            terms = task.terms(task.prepared(self.batch))
            loss = terms.get("loss", total(terms))
        task.train()
        return float(trainer.strategy.reduce(loss, reduce_op="mean"))
