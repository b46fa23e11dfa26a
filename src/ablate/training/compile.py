"""compile=true: compile the training pass of a model with torch.compile.

Modules are compiled in place, so that names in checkpoints stay the same, and only for training:
validation, figures and generation see new shapes all the time and run uncompiled. Random numbers
are those of an uncompiled run.
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch
from lightning.pytorch.callbacks import Callback
from torch import nn
from tqdm import tqdm

from ablate.errors import UserError
from ablate.kernel import Kernel
from ablate.task import Task
from ablate.task.cross_entropy import CrossEntropy


def compiled_parts(task: Task) -> list[nn.Module]:
    """The modules that compile=true compiles: those of the model, and the loss of logits."""
    losses = (module for module in task.children() if isinstance(module, CrossEntropy))
    return [*task.model.compiles, *losses]


class Compiled(Callback):
    """Compile the modules of `compiled_parts` while the model trains.

    With fullgraph=True, code that cannot be compiled is an error, not a graph break. A second batch
    length makes the length dynamic.
    """

    def __init__(self) -> None:
        self.calls: dict[nn.Module, Any] = {}

    def on_train_start(self, trainer: Any, task: Any) -> None:
        self.begin(compiled_parts(task), options={"fallback_random": True})

    def begin(self, parts: Sequence[nn.Module], **settings: Any) -> None:
        torch.compiler.reset()  # torch limits the compiled versions of a model in one process
        for part in parts:
            part.compile(fullgraph=True, **settings)
            self.calls[part] = part._compiled_call_impl
            for module in part.modules():
                if isinstance(kernel := getattr(module, "kernel", None), Kernel):
                    kernel.compiled = True

    def on_validation_start(self, *_: Any) -> None:
        self._switch(on=False)

    def on_validation_end(self, *_: Any) -> None:
        self._switch(on=True)

    def teardown(self, trainer: Any, task: Any, stage: str) -> None:
        self._switch(on=False)
        self.calls = {}

    def _switch(self, *, on: bool) -> None:
        # torch has no API for this; Module.compile sets this attribute.
        for part, call in self.calls.items():
            part._compiled_call_impl = call if on else None


class CompileNotice(Callback):
    """Report once when torch starts to compile, for compile=true or for a kernel: steps then
    wait."""

    def __init__(self) -> None:
        self.warned = False

    def on_train_start(self, trainer: Any, *_: Any) -> None:
        # After `Compiled`, whose reset removes callbacks. Every optimizer has imported _dynamo.
        if trainer.is_global_zero:
            torch._dynamo.callback_handler.register_start_callback(self._say)

    def _say(self, *_: Any) -> None:
        if not self.warned:
            self.warned = True
            # Not print: a progress bar may be there.
            tqdm.write("ablate: compiling (torch.compile); the first steps take longer")
            sys.stdout.flush()

    def teardown(self, *_: Any, **__: Any) -> None:
        if "torch._dynamo" in sys.modules:
            with suppress(ValueError):  # it is not registered
                torch._dynamo.callback_handler.remove_start_callback(self._say)

    on_exception = teardown


@contextmanager
def refusing() -> Iterator[None]:
    """Turn torch's compilation errors into a one-line UserError."""
    try:
        yield
    except Exception as error:
        from torch._dynamo.exc import FailOnRecompileLimitHit, TorchDynamoException

        if not isinstance(error, TorchDynamoException | FailOnRecompileLimitHit):
            raise
        line = (str(error).strip() or type(error).__name__).splitlines()[0]
        if isinstance(error, FailOnRecompileLimitHit):  # torch's message names an option of torch
            line = "batches of varying shapes would each be compiled again"
        raise UserError(
            f"compile=true: torch cannot compile this model ({line}); set compile=false"
        ) from error
