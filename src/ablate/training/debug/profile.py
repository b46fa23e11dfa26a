"""debug=profile: the time of a training step by operation."""

import os
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.callbacks import Callback
from torch.profiler import ProfilerActivity, profile

from ablate.config.rules import Count
from ablate.errors import UserError
from ablate.machine.terminal.say import say

TRACE = "trace.json"  # in the run's folder


class Profile(Callback):
    """Prints torch.profiler's table of the operations that took longest, and writes a trace for
    Chrome.

    steps: training batches to record, after as many that are not, because the first ones include
    one-time costs. rows: of the table. With several processes the first is recorded.
    """

    def __init__(self, *, steps: Count, rows: Count):
        self.steps, self.rows = steps, rows
        self.profiler: profile | None = None

    def on_train_start(self, trainer: Any, *_: Any) -> None:
        batches = trainer.max_steps * trainer.accumulate_grad_batches
        if batches < 2 * self.steps:
            raise UserError(
                f"debug.steps={self.steps} needs {2 * self.steps} training batches, half of them"
                f" before it records, and there are {batches}; raise trainer.max_steps or lower it"
            )

    def on_train_batch_start(self, trainer: Any, task: Any, batch: Any, batch_idx: int) -> None:
        if trainer.is_global_zero and batch_idx == self.steps:
            activities = [ProfilerActivity.CPU]
            if task.device.type == "cuda":
                activities.append(ProfilerActivity.CUDA)
            # Otherwise it prints to stderr that it starts and stops, and that it found no GPU.
            os.environ.setdefault("KINETO_LOG_LEVEL", "99")
            self.profiler = profile(activities=activities)
            self.profiler.start()

    def on_train_batch_end(
        self, trainer: Any, task: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self.profiler is None or batch_idx + 1 < 2 * self.steps:
            return
        gpu = task.device.type == "cuda"
        if gpu:  # steps may be queued that it has not computed yet
            torch.cuda.synchronize(task.device)
        self.profiler.stop()
        path = Path(trainer.default_root_dir) / TRACE
        self.profiler.export_chrome_trace(str(path))
        order = "self_device_time_total" if gpu else "self_cpu_time_total"
        print(self.profiler.key_averages().table(sort_by=order, row_limit=self.rows))
        say(f"the trace is in {path}; open it in ui.perfetto.dev or chrome://tracing")
        self.profiler = None
