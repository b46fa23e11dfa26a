"""The parts of a training step, to which the operations that a profiler recorded belong."""

from collections import defaultdict
from contextlib import ExitStack
from typing import Any

from torch import nn
from torch.autograd import DeviceType
from torch.profiler import profile, record_function

from ablate.model.base import Model
from ablate.task import Task

DATA, HEAD, OPTIMIZER = "data", "head and loss", "optimizer"
OTHER, REST = "other parts of the model", "rest"
# Submodules by the last of their name: those of ablate.model.layers.block.
NAMES = {
    "attention": "attention",
    "cross_attention": "cross-attention",
    "mixer": "mixer",
    "feed_forward": "feed-forward",
}
# Record functions of torch that tell a part.
RECORDED = {"enumerate(DataLoader)": DATA, "Optimizer.": OPTIMIZER}
MARK = "part: "  # before the name of a part in the trace
BACKWARD = "autograd::engine::evaluate_function: "


def part_of(name: str, module: nn.Module, model: Model) -> str | None:
    """The part of the model that a module is; None if it counts as the module around it."""
    leaf, kind = name.rpartition(".")[2], type(module).__name__
    if not name:
        return HEAD  # a tied output map is no module
    if isinstance(module, nn.Identity | nn.ModuleList):
        return None
    if "norm" in leaf or "Norm" in kind:
        return "norm"
    if f"{name}.".startswith(model.embeddings):
        return "embedding"
    if f"{name}.".startswith(model.heads):
        return HEAD
    if leaf in NAMES:
        return NAMES[leaf]
    if "Attention" in kind and NAMES.keys().isdisjoint(name.split(".")):
        return NAMES["attention"]
    if isinstance(module, nn.RNNBase):
        return "recurrent cells"
    if isinstance(module, nn.Conv1d | nn.Conv2d):
        return "convolution"
    return None if "." in name else OTHER


class Marks:
    """Record the part of every module, and of what the task does around the model, until `remove`;
    for the record of one training."""

    def __init__(self, task: Task) -> None:
        self._open = ExitStack()
        for name, module in task.model.named_modules():
            if part := part_of(name, module, task.model):
                self._mark(module, part)
        step = task.training_step

        def marked(*args: Any, **kwargs: Any) -> Any:
            with record_function(MARK + HEAD):
                return step(*args, **kwargs)

        task.training_step = marked  # type: ignore[method-assign]
        self._open.callback(delattr, task, "training_step")

    def _mark(self, module: nn.Module, part: str) -> None:
        running: list[record_function] = []

        def enter(*_: Any) -> None:
            running.append(record_function(MARK + part))
            running[-1].__enter__()

        def leave(*_: Any) -> None:
            running.pop().__exit__(None, None, None)

        for handle in (
            module.register_forward_pre_hook(enter),
            module.register_forward_hook(leave, always_call=True),
        ):
            self._open.callback(handle.remove)

    def remove(self) -> None:
        self._open.close()


def times(profiler: profile) -> dict[str, tuple[float, float]]:
    """Microseconds of the CPU and of the GPU in each part, its backward pass included."""
    events = [e for e in profiler.events() if e.device_type == DeviceType.CPU]
    events.sort(key=lambda event: event.time_range.start)
    # The node of the backward pass has the number of the last operation that was recorded with it.
    of_node: dict[int, str] = {}

    def owner(event: Any) -> str:
        while event is not None:
            if event.name.startswith(MARK):
                return str(event.name.removeprefix(MARK))
            if event.name.startswith(BACKWARD):
                return of_node.get(event.sequence_nr, REST)
            for start, part in RECORDED.items():
                if event.name.startswith(start):
                    return part
            event = event.cpu_parent
        return REST

    spent: dict[str, tuple[float, float]] = defaultdict(lambda: (0.0, 0.0))
    for event in events:
        part = owner(event)
        if event.sequence_nr >= 0 and not event.name.startswith(BACKWARD):
            of_node[event.sequence_nr] = part
        cpu, gpu = spent[part]
        spent[part] = cpu + event.self_cpu_time_total, gpu + event.self_device_time_total
    return dict(spent)
