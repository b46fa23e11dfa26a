"""compile=true: the training pass of a model as fused loops (torch.compile).

Compiled in place, so that names in checkpoints stay, and in training alone: validation, figures and
generation meet new shapes all the time, and are computed as written. Random numbers are drawn as
without it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import lightning.pytorch as L
import torch
from lightning.pytorch.callbacks import Callback
from torch import nn

from ablate.errors import UserError
from ablate.kernel import Kernel
from ablate.model.base import Model
from ablate.task import Task


class Compiled(Callback):
    """Has the parts that a model names compiled while it trains.

    Whole (fullgraph): what cannot be compiled is refused, not left out. A second length of the
    batches makes lengths a variable of the code.
    """

    def __init__(self) -> None:
        self.calls: dict[nn.Module, Any] = {}

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        assert isinstance(pl_module, Task)
        self.begin(pl_module.model, options={"fallback_random": True})

    def begin(self, model: Model, **settings: Any) -> None:
        torch.compiler.reset()  # torch keeps but a few versions of a model's code in a process
        for part in model.compiles:
            part.compile(fullgraph=True, **settings)
            self.calls[part] = part._compiled_call_impl
            for module in part.modules():
                if isinstance(kernel := getattr(module, "kernel", None), Kernel):
                    kernel.compiled = True

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._switch(on=False)

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._switch(on=True)

    def teardown(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        self._switch(on=False)
        self.calls = {}

    def _switch(self, *, on: bool) -> None:
        # torch has no word for this: the attribute is what Module.compile sets.
        for part, call in self.calls.items():
            part._compiled_call_impl = call if on else None


@contextmanager
def refusing() -> Iterator[None]:
    """What torch cannot compile, in one line."""
    try:
        yield
    except Exception as error:
        from torch._dynamo.exc import FailOnRecompileLimitHit, TorchDynamoException

        if not isinstance(error, TorchDynamoException | FailOnRecompileLimitHit):
            raise
        line = (str(error).strip() or type(error).__name__).splitlines()[0]
        if isinstance(error, FailOnRecompileLimitHit):  # its own text names an option of torch's
            line = "batches of ever new shapes would each be compiled anew"
        raise UserError(
            f"compile=true: torch cannot compile this model ({line}); set compile=false"
        ) from error
