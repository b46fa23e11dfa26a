"""debug=profile: where the time of a training step goes."""

import os
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import lightning.pytorch as L
import torch
from lightning.pytorch.callbacks import Callback
from rich.table import Table
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, record_function

from ablate.config.rules import Count
from ablate.debug.parts import BACKWARD, MARK, REST, Marks, times
from ablate.errors import UserError, shortened
from ablate.task import Task
from ablate.terminal.console import Console
from ablate.terminal.say import say

WIDEST = 40  # characters of an operation's name: a terminal of 80 has room for the numbers
TRACE = "trace.json"  # in the run's folder


class Profile(Callback):
    """Prints the share of a step's time by part of the model and of the training, then the
    operations that took longest, and writes a trace for Chrome.

    steps: training batches to record, after as many that are not, because the first ones include
    one-time costs. rows: of the table. With several processes the first is recorded.
    """

    def __init__(self, *, steps: Count, rows: Count):
        self.steps, self.rows = steps, rows
        self.profiler: profile | None = None
        self.started = 0.0
        self.backward = ExitStack()

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
            assert isinstance(pl_module, Task)
            self.marks = Marks(pl_module)
            self.profiler.start()
            self.started = time.perf_counter()

    def on_before_backward(
        self, trainer: L.Trainer, pl_module: L.LightningModule, loss: torch.Tensor
    ) -> None:
        if self.profiler is not None:  # else what no part owns would count as the optimizer's
            self.backward.enter_context(record_function(MARK + REST))

    def on_after_backward(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.backward.close()

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
        self.marks.remove()
        path = Path(trainer.default_root_dir) / TRACE
        self.profiler.export_chrome_trace(str(path))
        print_parts(self.profiler, seconds / self.steps, self.steps, gpu=gpu)
        print_operations(self.profiler, self.steps, rows=self.rows, gpu=gpu)
        say(f"the trace is in {path}; open it in ui.perfetto.dev or chrome://tracing")
        self.profiler = None


def print_parts(profiler: profile, seconds: float, steps: int, *, gpu: bool) -> None:
    """The parts of a step with their milliseconds and their share, forward and backward together.

    seconds: wall-clock time of a step, which includes the overhead of recording. The share is one
    of it, or on a GPU of the GPU's time; what no operation took is part of the rest.
    """
    spent = times(profiler)
    whole = sum(device for _, device in spent.values()) if gpu else 1e6 * seconds * steps
    if not gpu:
        cpu, device = spent.pop(REST, (0.0, 0.0))
        measured = cpu + sum(time for time, _ in spent.values())
        spent[REST] = cpu + max(0.0, whole - measured), device
    table = timed(
        f"Where a step of {1e3 * seconds:.1f} ms goes", "part", "GPU" if gpu else "step", gpu
    )
    for part, (cpu, device) in sorted(spent.items(), key=lambda item: -item[1][gpu]):
        milliseconds = [f"{time / steps / 1e3:.2f}" for time in ([device, cpu] if gpu else [cpu])]
        table.add_row(part, *milliseconds, f"{(device if gpu else cpu) / whole:.0%}")
    Console(soft_wrap=True, highlight=False).print(table)


def print_operations(profiler: profile, steps: int, *, rows: int, gpu: bool) -> None:
    """The operations that took longest, in milliseconds per step, without those they call."""
    events = [e for e in profiler.key_averages() if e.device_type == DeviceType.CPU]
    operations = [event for event in events if not event.key.startswith(MARK)]

    def self_time(operation: Any) -> float:
        return float(operation.self_device_time_total if gpu else operation.self_cpu_time_total)

    table = timed(
        "The operations that took longest", "operation", "GPU" if gpu else "CPU", gpu, "calls"
    )
    total = sum(map(self_time, operations))
    for operation in sorted(operations, key=self_time, reverse=True)[:rows]:
        times = [operation.self_device_time_total] if gpu else []
        times.append(operation.self_cpu_time_total)
        milliseconds = [f"{time / steps / 1e3:.2f}" for time in times]
        share = f"{self_time(operation) / total:.0%}"
        table.add_row(named(operation.key), f"{operation.count / steps:g}", *milliseconds, share)
    table.add_section()
    table.add_row("all operations", "", f"{total / steps / 1e3:.2f}", *[""] * gpu, "100%")
    Console(soft_wrap=True, highlight=False).print(table)


def timed(title: str, first: str, share: str, gpu: bool, *more: str) -> Table:
    """A table of times. share: of what the last column is one."""
    table = Table(title=title, title_justify="left")
    table.add_column(first, no_wrap=True)
    for name in (*more, *(["GPU ms"] if gpu else []), "CPU ms", f"share of {share}"):
        table.add_column(name, justify="right")
    return table


def named(operation: str) -> str:
    """An operation in at most `WIDEST` characters."""
    return shortened(operation.replace(BACKWARD, "backward of ").removeprefix("aten::"), WIDEST)
