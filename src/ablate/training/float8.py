"""trainer.precision=fp8-mixed: linear maps of the blocks in float8, the rest as in bf16-mixed.

torchao scales each tensor by its largest number before every product: inputs and weights have 4
bits of exponent (e4m3), gradients of outputs 5 (e5m2): Micikevicius et al. 2022,
https://arxiv.org/abs/2209.05433. Without a GPU that has float8 its rounding is emulated, without
its speed.
"""

import torch
import torch.nn.functional as F
from lightning.pytorch.plugins.precision import MixedPrecision
from torch import Tensor, nn
from torchao.float8 import Float8LinearConfig, convert_to_float8_training
from torchao.float8.float8_linear import Float8Linear

from ablate.config.conflicts import FLOAT8, FLOAT8_SIZES
from ablate.errors import UserError
from ablate.model.base import Model

CAPABILITY = (8, 9)  # of the first GPUs with float8: Ada and Hopper


class AnyRows(Float8Linear):
    """torchao's own finds no largest number of no rows, as of an expert without tokens."""

    def forward(self, x: Tensor) -> Tensor:
        if x.numel():
            return super().forward(x)
        return F.linear(x.to(self.weight.dtype), self.weight, self.bias).to(x.dtype)


class OnCPU(AnyRows):
    """torchao's own has the autocast of a GPU, and products of CPU autocast reject its tensors."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            return super().forward(x.bfloat16())


class Float8(MixedPrecision):
    """The precision of a Trainer on `device` ("cpu" or "cuda")."""

    def __init__(self, device: str) -> None:
        super().__init__("bf16-mixed", device)
        self.precision = FLOAT8  # type: ignore[assignment]
        self.emulated = device != "cuda" or torch.cuda.get_device_capability() < CAPABILITY

    def autocast_context_manager(self) -> torch.autocast:
        return torch.autocast(self.device, dtype=torch.bfloat16)

    def convert_module(self, module: nn.Module) -> nn.Module:
        """Replace the linear maps of the blocks of every model; parameters and names stay."""
        # A weight's gradient sums over rows, whose number need not be a multiple of 16.
        config = Float8LinearConfig(emulate=self.emulated, pad_inner_dim=True)
        for model in [part for part in module.modules() if isinstance(part, Model)]:
            matrices = {name for name, role in model.roles().items() if role == "matrix"}
            convert_to_float8_training(
                model,
                module_filter_fn=lambda part, name: (
                    f"{name}.weight" in matrices  # noqa: B023  # called here
                    and not isinstance(part, Float8Linear)
                    and all(size % FLOAT8_SIZES == 0 for size in part.weight.shape)
                ),
                config=config,
            )
        found = [part for part in module.modules() if isinstance(part, Float8Linear)]
        if not found:
            raise UserError(
                f"trainer.precision={FLOAT8}: no linear map of this model's blocks has sizes that"
                f" are multiples of {FLOAT8_SIZES}; use bf16-mixed"
            )
        for part in found:
            part.__class__ = OnCPU if self.device == "cpu" else AnyRows
        return module
