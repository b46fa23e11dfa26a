"""The base of forecasters."""

from abc import abstractmethod
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from ablate.model.base import Model


class Forecaster(Model):
    """Base of forecasters. `predict_residual`: the forecast is the last value plus the output of
    `read`.

    The model then starts from the naive forecast, the last value; otherwise it has to learn it. On
    the validation part of the sunspots both variants beat the naive forecasts, and the residual
    does better.
    """

    kinds = ("a time series",)
    item: ClassVar[str] = "time step"
    predict_residual: bool

    def forward(self, values: Float[Tensor, "b i c"]) -> Float[Tensor, "b i c"]:
        """At every position, a forecast of the next value from those up to it."""
        return values + self.read(values) if self.predict_residual else self.read(values)

    @abstractmethod
    def read(self, values: Float[Tensor, "b i c"]) -> Float[Tensor, "b i c"]:
        """The forecast, or its difference from the last value."""


@torch.no_grad()
def roll_out(
    model: Forecaster, values: Float[Tensor, "b i c"], steps: int
) -> Float[Tensor, "b {steps} c"]:
    """Forecast the `steps` values after these autoregressively.

    Each forecast is appended to the input and the oldest value dropped, so that the window keeps
    its length.
    """
    forecasts = []
    for _ in range(steps):
        forecasts.append(model(values)[:, -1:])
        values = torch.cat([values[:, 1:], forecasts[-1]], dim=1)
    return torch.cat(forecasts, dim=1)
