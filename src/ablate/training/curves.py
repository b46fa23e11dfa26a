"""Record every logged metric by step, in metrics.csv and in the loggers, and measure the training
time, and how much of it the process waits for data. Lightning itself would pass the loggers the
number of the step before.

The rows are saved in the checkpoint, so that a resumed run writes the file of an uninterrupted one.
"""

import time
from pathlib import Path
from typing import Any

import lightning.pytorch as L
import torch
from lightning.pytorch.callbacks import Callback
from torch import Tensor

from ablate.logger import RunLogger
from ablate.run_files import write_csv


class Curves(Callback):
    """Collect the metrics that the task logs; write them after every validation and at the end."""

    def __init__(self, path: Path):
        self.path = path
        self.rows: list[dict[str, float]] = []
        self.units: int | Tensor = 0  # a tensor if an int would need a GPU synchronization
        self.train_seconds = self.resumed_seconds = 0.0  # the second: at the checkpoint
        self.data_seconds = 0.0  # of the training time, spent waiting for batches
        self._since = 0.0
        self.logger: RunLogger | None = None
        self.reached: dict[str, int] = {}  # by the logger, at earlier attempts

    def state_dict(self) -> dict[str, Any]:
        running = time.perf_counter() - self._since if self._since else 0.0
        return {
            "rows": self.rows,
            "units": int(self.units),
            "train_seconds": self.train_seconds + running,
            "data_seconds": self.data_seconds,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.rows, self.units = state_dict["rows"], state_dict["units"]
        self.train_seconds = self.resumed_seconds = state_dict["train_seconds"]
        self.data_seconds = state_dict.get("data_seconds", 0.0)
        if self.logger is not None:
            self.logger.catch_up(self.rows, self.reached)

    def on_train_batch_start(self, trainer: Any, task: Any, batch: Any, *_: Any) -> None:
        loader = trainer.train_dataloader
        if self._since:
            self.data_seconds += loader.waited
        else:  # nor was the first batch waited for in the time that is measured
            self._since = time.perf_counter()
        loader.waited = 0.0
        self.units = self.units + task.units(batch) * task.data.share().world

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        if trainer.fit_loop.epoch_loop._should_accumulate():  # in the middle of an optimizer step
            return
        every: int = trainer.log_every_n_steps
        if trainer.global_step % every == 0:
            self._add_logged(trainer, ("train/",))

    def on_validation_start(self, trainer: Any, task: Any) -> None:
        self._stop_clock(task.device)

    def on_validation_end(self, trainer: Any, *_: Any) -> None:
        # The validation of the best weights after training is a result, not a point of the curve.
        last = self.rows[-1] if self.rows else {"step": -1.0}
        measured = any(name.startswith("val/") for name in last)
        if last["step"] != trainer.global_step or not measured:
            self._add_logged(trainer, ("val/",))
        if trainer.is_global_zero:
            self.write()

    def on_train_end(self, trainer: Any, task: Any) -> None:
        self._stop_clock(task.device)
        self.units = int(self.units)
        if trainer.is_global_zero:
            self.write()

    def write(self) -> None:
        """Rewrite the whole file: later rows may have columns that earlier ones lack."""
        columns = ["step", *sorted({name for row in self.rows for name in row} - {"step"})]
        rows = ([row.get(column, "") for column in columns] for row in self.rows)
        write_csv(self.path, [columns, *rows])

    def _add_logged(self, trainer: L.Trainer, prefixes: tuple[str, ...]) -> None:
        values = {
            name: float(value)
            for name, value in trainer.callback_metrics.items()
            if name.startswith(prefixes)
        }
        self.add(trainer.global_step, values)
        for logger in trainer.loggers if values else ():
            logger.log_metrics(values, step=trainer.global_step)

    def add(self, step: int, values: dict[str, float]) -> None:
        """Add values to the row of a step."""
        if self.rows and self.rows[-1]["step"] == step:
            self.rows[-1].update(values)
        elif values:
            self.rows.append({"step": step, **values})

    def _stop_clock(self, device: torch.device) -> None:
        if self._since:
            if device.type == "cuda":  # steps that were launched may still be running
                torch.cuda.synchronize(device)
            self.train_seconds += time.perf_counter() - self._since
            self._since = 0.0
