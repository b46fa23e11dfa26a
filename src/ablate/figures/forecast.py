"""The forecasts of a model against the true values."""

from pathlib import Path

import torch

from ablate.data.loader import Request
from ablate.data.series import Series
from ablate.figures.panels import TITLE, entitle, grid
from ablate.figures.save import save
from ablate.model.base import Forecaster, roll_out
from ablate.task import Task

MOST = 120  # values of the validation part that are drawn
COLUMNS = 4  # panels
WIDTH, HEIGHT = 9.0, 3.6  # inches of a panel


@torch.no_grad()
def draw_forecast(task: Task, out: Path) -> Path:
    """The beginning of the validation part, a panel for each column, as a PNG.

    It shows the true values, the one-step forecast of each value, and autoregressive forecasts that
    begin every `data.horizon` values.
    """
    data, model = task.data, task.model
    assert isinstance(data, Series)
    assert isinstance(model, Forecaster)
    count, start = min(MOST, data.length("val")), data.starts["val"]
    values = data.splits["val"][Request(0, torch.arange(count))]["values"]
    one = data.restore(model(values)[:, -1])
    begins = range(0, count, data.horizon)
    ahead = data.restore(roll_out(model, values[list(begins)], data.horizon))
    truth = data.restore(data.values[start - data.horizon : start + count])
    times = [int(data.time(start - data.horizon + place)) for place in range(len(truth))]
    shown = data.names[:COLUMNS]
    figure, axes = grid(len(shown), width=WIDTH, height=HEIGHT)
    for column, (name, axis) in enumerate(zip(shown, axes, strict=True)):
        axis.plot(times, truth[:, column], "k-", linewidth=1.2, label="truth")
        axis.plot(times[data.horizon :], one[:, column], "o-", markersize=3, label="one step ahead")
        for begin, forecast in zip(begins, ahead, strict=True):
            steps = times[begin + data.horizon : begin + 2 * data.horizon]
            label = None if begin else f"{data.horizon} steps ahead, from each square on"
            line = axis.plot(steps, forecast[: len(steps), column], "--", color="C1", label=label)
            axis.plot(steps[0], forecast[0, column], "s", markersize=4, color=line[0].get_color())
        axis.axvline(times[data.horizon] - 0.5, color="0.8", linewidth=1)
        axis.set_title(name, parse_math=False, fontsize=TITLE)
        axis.grid(alpha=0.3)
        axis.legend(fontsize=7)
    entitle(figure, "Forecasts of the validation part, which begins at the line")
    return save(figure, out)
