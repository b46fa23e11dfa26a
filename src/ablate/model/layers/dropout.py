"""Dropout, Srivastava et al. 2014, https://jmlr.org/papers/v15/srivastava14a.html.

Replaces torch.nn.Dropout, which on a non-Intel CPU draws one number after the other and takes a
sixth of a Transformer's training step.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BITS = 16  # random bits per unit: the rate is rounded to 1 / 2^16


def dropout(x: Tensor, rate: float) -> Tensor:
    """Zero each unit with probability `rate`, and scale the others by 1 / (1 - rate)."""
    if rate == 0:
        return x
    if rate == 1 or x.device.type != "cpu":
        return F.dropout(x, rate)
    numbers = -(-x.numel() * BITS // 64)
    drawing = whole if torch.compiler.is_compiling() else draw
    drawn = drawing(numbers, x.device)
    lowest = round(rate * 2**BITS) - 2 ** (BITS - 1)  # int16 begins at -2^15
    kept = (drawn.view(torch.int16)[: x.numel()] >= lowest).view(x.shape)
    return x * kept.to(x.dtype).div_(1 - rate)


def draw(numbers: int, device: torch.device) -> Tensor:
    """`numbers` integers of 64 random bits each."""
    return torch.empty(numbers, dtype=torch.int64, device=device).random_(-(2**63), None)


# torch.compile does not support `random_`: a custom operator, never removed, merged or repeated.
whole = torch.library.custom_op(
    "ablate::draw", draw, mutates_args=(), tags=[torch.Tag.nondeterministic_seeded]
)
whole.register_fake(lambda numbers, device: torch.empty(numbers, dtype=torch.int64, device=device))


class Dropout(nn.Dropout):
    """Dropout in training; the identity in evaluation."""

    def forward(self, x: Tensor) -> Tensor:
        return dropout(x, self.p) if self.training else x
