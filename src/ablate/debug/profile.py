"""debug=profile: where the time of a training step goes."""

import os
import time
from pathlib import Path
from typing import Any

import lightning.pytorch as L
import torch
from lightning.pytorch.callbacks import Callback
from rich.table import Table
from torch.profiler import ProfilerActivity, profile

from ablate.config.rules import Count
from ablate.errors import UserError
from ablate.terminal.console import Console
from ablate.terminal.say import say

TRACE = "trace.json"  # in the run's folder


class Profile(Callback):
    """Prints a table of the operations that took longest and writes a trace for Chrome.

    steps: training batches to record, after as many that are not, because the first ones include
    one-time costs. rows: of the table. With several processes the first is recorded.
    """

    def __init__(self, *, steps: Count, rows: Count):
        self.steps, self.rows = steps, rows
        self.profiler: profile | None = None
        self.started = 0.0

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        batches = trainer.max_steps * trainer.accumulate_grad_batches
        if batches < 2 * self.steps:
            raise UserError(
                f"debug.steps={self.steps} needs {2 * self.steps} training batches, half of them"
                f" before it records, and there are {batches}; raise trainer.max_steps or lower it"
            )

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        if trainer.is_global_zero and batch_idx == self.steps:
            activities = [ProfilerActivity.CPU]
            if pl_module.device.type == "cuda":
                activities.append(ProfilerActivity.CUDA)
            # Otherwise it prints on stderr that it starts and stops, and that there is no GPU.
            os.environ.setdefault("KINETO_LOG_LEVEL", "99")
            self.profiler = profile(activities=activities)
            self.profiler.start()
            self.started = time.perf_counter()

    def on_train_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        if self.profiler is None or batch_idx + 1 < 2 * self.steps:
            return
        gpu = pl_module.device.type == "cuda"
        if gpu:  # steps may be queued that it has not computed yet
            torch.cuda.synchronize(pl_module.device)
        seconds = time.perf_counter() - self.started
        self.profiler.stop()
        path = Path(trainer.default_root_dir) / TRACE
        self.profiler.export_chrome_trace(str(path))
        print_table(self.profiler, seconds / self.steps, self.steps, rows=self.rows, gpu=gpu)
        say(f"the trace is in {path}; open it in ui.perfetto.dev or chrome://tracing")
        self.profiler = None


def print_table(profiler: profile, seconds: float, steps: int, *, rows: int, gpu: bool) -> None:
    """The operations that took longest, in milliseconds per step, without those they call.

    seconds: wall-clock time of a step, which includes the overhead of recording.
    """
    operations = profiler.key_averages()

    def self_time(operation: Any) -> float:
        return float(operation.self_device_time_total if gpu else operation.self_cpu_time_total)

    processor = "GPU" if gpu else "CPU"
    table = Table(title=f"Where a step of {1e3 * seconds:.1f} ms goes", title_justify="left")
    table.add_column("operation", overflow="fold")
    for name in ("calls", *(["GPU ms"] if gpu else []), "CPU ms", f"share of {processor}"):
        table.add_column(name, justify="right")
    total = sum(self_time(operation) for operation in operations)
    for operation in sorted(operations, key=self_time, reverse=True)[:rows]:
        times = [operation.self_device_time_total] if gpu else []
        times.append(operation.self_cpu_time_total)
        milliseconds = [f"{time / steps / 1e3:.2f}" for time in times]
        share = f"{self_time(operation) / total:.0%}"
        table.add_row(operation.key, f"{operation.count / steps:g}", *milliseconds, share)
    table.add_section()
    table.add_row("all operations", "", f"{total / steps / 1e3:.2f}", *[""] * gpu, "100%")
    Console(soft_wrap=True, highlight=False).print(table)
