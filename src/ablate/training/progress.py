"""Show the progress of training and measuring: a bar on a terminal, lines elsewhere, and a small
file for other processes."""

import os
import platform
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

import lightning.pytorch as L
from lightning.pytorch.callbacks import Callback, TQDMProgressBar

from ablate.run_files import PROGRESS, write_json

SECONDS = 2.0  # between two writes of the file
SILENCE = 30.0  # seconds, at most, without a line in a log file


class ProgressBar(TQDMProgressBar):
    """Lightning's bar, with the loss and the rate and without the logger's version number."""

    def on_train_epoch_start(self, trainer: L.Trainer, *args: Any) -> None:
        super().on_train_epoch_start(trainer, *args)
        self.train_progress_bar.set_description("training")  # one stream, so no epochs to count

    def get_metrics(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        metrics = super().get_metrics(*args, **kwargs)
        metrics.pop("v_num", None)
        return metrics


class StepRate(Callback):
    """Measure optimizer steps per second since this process started training."""

    def __init__(self) -> None:
        self.started: tuple[float, int] | None = None

    def on_train_start(self, trainer: Any, *_: Any) -> None:
        self.started = time.perf_counter(), trainer.global_step

    def rate(self, trainer: L.Trainer) -> float:
        """Optimizer steps per second."""
        assert self.started is not None
        began, first = self.started
        return (trainer.global_step - first) / (time.perf_counter() - began)


class ProgressLines(StepRate):
    """Print one line after every validation, and after `SILENCE` seconds without one, for log
    files."""

    def __init__(self, file: TextIO | None = None) -> None:
        super().__init__()
        self.file = file
        self._began = self._printed = 0.0  # the pass over a split; the last line

    def on_train_start(self, trainer: Any, task: Any) -> None:
        super().on_train_start(trainer, task)
        self._printed = time.perf_counter()

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        self._print(trainer, "", after=SILENCE)

    def on_validation_start(self, *_: Any) -> None:
        self._began = self._printed = time.perf_counter()

    on_test_start = on_validation_start  # type: ignore[assignment]

    def on_validation_batch_end(
        self, trainer: Any, task: Any, outputs: Any, batch: Any, batch_idx: int, *_: Any
    ) -> None:
        now, done = time.perf_counter(), batch_idx + 1
        if not trainer.is_global_zero or now - self._printed < SILENCE:
            return
        self._printed = now
        split, batches = "validation", trainer.num_val_batches
        if trainer.testing:
            split, batches = "test", trainer.num_test_batches
        seconds = (batches[0] - done) * (now - self._began) / done
        line = f"{split}: {done:,} of {batches[0]:,} batches, {seconds:.0f} s left"
        print(line, file=self.file, flush=True)

    on_test_batch_end = on_validation_batch_end  # type: ignore[assignment]

    def on_validation_end(self, trainer: Any, *_: Any) -> None:
        values = ", ".join(
            f"{name} {float(value):.4g}"
            for name, value in sorted(trainer.callback_metrics.items())
            if name.count("/") == 1
        )
        self._print(trainer, f"{values}; ")

    def _print(self, trainer: L.Trainer, values: str, after: float = 0.0) -> None:
        now = time.perf_counter()
        if not trainer.is_global_zero or not self.started or trainer.state.fn != "fit":
            return
        if now - self._printed < after:
            return
        self._printed = now
        step, last, rate = trainer.global_step, trainer.max_steps, self.rate(trainer)
        left = (last - step) / rate if rate else 0
        print(f"step {step}/{last}: {values}{rate:.1f} steps/s, {left:.0f} s left", flush=True)


class ProgressFile(StepRate):
    """Write progress.json in the run's folder every 2 s; a crash leaves it behind."""

    def __init__(self, run_dir: Path):
        super().__init__()
        self.path = run_dir / PROGRESS
        self._next = 0.0

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        if not trainer.is_global_zero or time.monotonic() < self._next:
            return
        self._next = time.monotonic() + SECONDS
        content = {
            "step": trainer.global_step,
            "steps": trainer.max_steps,
            "rate": self.rate(trainer),
            "pid": os.getpid(),
            "host": platform.node(),
        }
        with suppress(OSError):  # training does not depend on it
            write_json(self.path, content, flush=False)

    def on_train_end(self, trainer: Any, *_: Any) -> None:
        if trainer.is_global_zero:
            self.path.unlink(missing_ok=True)


def progress(file: TextIO | None = None) -> Callback:
    """Return a bar on a terminal, else lines, by default on standard output."""
    return ProgressBar(refresh_rate=10, leave=True) if sys.stderr.isatty() else ProgressLines(file)
