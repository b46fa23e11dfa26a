"""Forecasters: values in, the next value out. What rolling out a forecast needs of them."""

from abc import abstractmethod

import torch
from torch import Tensor

from ablate.model.init import Model


class Forecaster(Model):
    """`difference`: the forecast is the last value that was read and what `read` adds to it.

    The naive forecast of the last value is then where the model starts from; without, it has to
    learn it. On the validation part of the sunspots both ways beat the naive forecasts, and the
    difference does better.
    """

    difference: bool

    def forward(self, values: Tensor) -> Tensor:
        """b i c -> b i c: the forecast of the next value at every position, from those up to it."""
        return values + self.read(values) if self.difference else self.read(values)

    @abstractmethod
    def read(self, values: Tensor) -> Tensor:
        """b i c -> b i c."""


@torch.no_grad()
def roll_out(model: Forecaster, values: Tensor, steps: int) -> Tensor:
    """The next `steps` values after b i c: b steps c.

    Each forecast is read as a value by the next, and the oldest is forgotten: as many are read as
    in training.
    """
    forecasts = []
    for _ in range(steps):
        forecasts.append(model(values)[:, -1:])
        values = torch.cat([values[:, 1:], forecasts[-1]], dim=1)
    return torch.cat(forecasts, dim=1)
