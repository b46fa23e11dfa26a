"""Forecasting: the next value of a time series, and further ones from the model's forecasts."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchmetrics.aggregation import MeanMetric
from torchmetrics.metric import Metric

from ablate.data import Batch, Request
from ablate.systems.forecasting.figures import draw_forecast
from ablate.systems.forecasting.forecaster import Forecaster, roll_out
from ablate.systems.forecasting.series import Series
from ablate.task import Task
from ablate.task.presenter import COUNT, Presenter, write_sample

DRAWN = 120  # values of the validation part


class Errors(Metric):
    """Mean absolute error and root mean squared error of each column. Its states are sums."""

    full_state_update = False
    absolute: Tensor
    squared: Tensor
    count: Tensor

    def __init__(self, columns: int):
        super().__init__()
        for name in ("absolute", "squared"):
            self.add_state(name, torch.zeros(columns), dist_reduce_fx="sum")
        self.add_state("count", torch.tensor(0), dist_reduce_fx="sum")

    def update(self, forecast: Tensor, truth: Tensor) -> None:
        """forecast, truth: b s c."""
        error = (forecast - truth).flatten(0, 1)
        self.absolute += error.abs().sum(0)
        self.squared += error.square().sum(0)
        self.count += len(error)

    def compute(self) -> dict[str, Tensor]:
        return {"mae": self.absolute / self.count, "rmse": (self.squared / self.count).sqrt()}


class ForecastPresenter(Presenter):
    """Forecasts after the end of the series."""

    family = "forecasting"
    options = {
        "steps": {"type": COUNT, "help": "number of values to forecast (default: data.horizon)"}
    }
    loss_unit = "squared error of normalized values"

    def forecast(self, steps: int) -> str:
        """The forecast after the end of the series as text: a line for each time step."""
        first = self.data.count
        values = roll_out(self.model, self.data.latest.to(self.task.device), steps)[0]
        lines = ["\t".join(["time", *self.data.names])]
        for step, row in enumerate(self.data.restore(values), first):
            lines.append("\t".join([self.data.time(step), *(f"{value:.6g}" for value in row)]))
        return "\n".join(lines)

    def artifacts(self, folder: Path) -> list[Path]:
        sample = write_sample(folder, self.forecast(self.data.horizon))
        return [sample, self.draw(folder / "figures" / "forecast.png")]

    @torch.no_grad()
    def draw(self, out: Path) -> Path:
        """Draw the beginning of the validation part: the true values, the one-step forecast of each
        value, and forecasts that begin every `data.horizon` values."""
        data, horizon = self.data, self.data.horizon
        count, begin = min(DRAWN, data.length("val")), data.starts["val"]
        start = max(0, begin - horizon)
        values = data.splits["val"][Request(0, torch.arange(count))]["values"]
        truth = data.restore(data.values[start : begin + count])
        times = [int(data.time(start + step)) for step in range(len(truth))]
        one_step = data.restore(self.model(values)[:, -1])
        ahead = data.restore(roll_out(self.model, values[::horizon], horizon))
        return draw_forecast(data.names, times, truth, one_step, ahead, out)

    def generate(self, arguments: Mapping[str, Any], folder: Path) -> Iterable[str]:
        yield self.forecast(arguments.get("steps", self.data.horizon))


class Forecasting(Task):
    """Squared error of normalized values, at every position of a window in training.

    The forecast after each window of a split is measured: mae and rmse of the next value,
    horizon_mae and horizon_rmse of the next `data.horizon` values, for which the model reads its
    own forecasts; only windows whose horizon lies within the split count for these. naive_* are the
    same for the forecast that repeats the last value, seasonal_* for the one that repeats the last
    `data.period` values, on exactly the same windows. All are in the unit of the data; with several
    columns they are the mean, and each column's value is given as well.

    During training only the one-step measures of the model are computed.
    """

    kinds = ("a time series",)
    output = "next values"
    metric, mode, unit = "val/rmse", "min", "values"
    presenter = ForecastPresenter
    data: Series
    model: Forecaster

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.mean_loss = MeanMetric()
        columns = len(self.data.names)
        kinds = ["", "naive_"] + ["seasonal_"] * (self.data.period is not None)
        self.errors = nn.ModuleDict(
            {f"{kind}{steps}": Errors(columns) for kind in kinds for steps in ("step", "horizon")}
        )

    def inputs(self, batch: Batch) -> tuple[Tensor, ...]:
        return (batch["values"],)

    def units(self, batch: Batch) -> int:
        return batch["values"].numel()

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        return {"loss": F.mse_loss(self.model(batch["values"]), batch["targets"])}

    def evaluate(self, batch: Batch) -> None:
        values, future = batch["values"].float(), batch["future"].float()
        steps = 1 if self.fitting else self.data.horizon
        forecasts = {"": roll_out(self.model, batch["values"], steps).float()}
        if not self.fitting:
            forecasts |= self.naive(values, steps)
        next_values = future[:, :1]
        self.mean_loss.update(F.mse_loss(forecasts[""][:, :1], next_values), len(values))
        complete = future.isfinite().flatten(1).all(1)
        for kind, forecast in forecasts.items():
            self._errors(f"{kind}step").update(forecast[:, :1], next_values)
            if not self.fitting:
                self._errors(f"{kind}horizon").update(forecast[complete], future[complete])

    def naive(self, values: Tensor, steps: int) -> dict[str, Tensor]:
        """The naive forecasts, which need no model: b i c -> b steps c each."""
        forecasts = {"naive_": values[:, -1:].expand(-1, steps, -1)}
        if (period := self.data.period) is not None:
            offsets = torch.arange(steps, device=values.device) % period - period
            forecasts["seasonal_"] = values[:, offsets]
        return forecasts

    def measures(self, split: str) -> dict[str, Tensor]:
        measures = {"loss": self.mean_loss.compute()}
        for name in ["step"] if self.fitting else self.errors:
            prefix = name.removesuffix("step").replace("horizon", "horizon_")
            for measure, value in self._errors(name).compute().items():
                measures |= self._in_unit(f"{prefix}{measure}", value)
        return measures

    def _errors(self, name: str) -> Errors:
        errors = self.errors[name]
        assert isinstance(errors, Errors)
        return errors

    def _in_unit(self, name: str, errors: Tensor) -> dict[str, Tensor]:
        """Errors of normalized values, c -> in the data's unit: their mean, and each column's."""
        errors = errors * torch.tensor(self.data.deviation).to(errors)
        columns = zip(self.data.names, errors, strict=True) if len(errors) > 1 else ()
        return {name: errors.mean()} | {f"{name}/{column}": error for column, error in columns}
