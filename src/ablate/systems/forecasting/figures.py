"""The forecasts of a model against the true values."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ablate.figures.panels import TITLE, entitle, grid
from ablate.figures.save import save

Values = NDArray[np.float64]

COLUMNS = 4  # panels
WIDTH, HEIGHT = 9.0, 3.6  # inches of a panel


def draw_forecast(
    names: Sequence[str],
    times: Sequence[int],
    truth: Values,
    one_step: Values,
    ahead: Values,
    out: Path,
) -> Path:
    """The beginning of the validation part, a panel for each column, as a PNG.

    truth: the values at `times`, t c: some before the part, then the part.
    one_step: the one-step forecast of each value of the part: t c. ahead: autoregressive forecasts,
    each starting at the end of the last: n t c.
    """
    horizon, before = ahead.shape[1], len(times) - len(one_step)
    begins = range(0, len(one_step), horizon)
    shown = names[:COLUMNS]
    figure, axes = grid(len(shown), width=WIDTH, height=HEIGHT)
    for column, (name, axis) in enumerate(zip(shown, axes, strict=True)):
        axis.plot(times, truth[:, column], "k-", linewidth=1.2, label="truth")
        axis.plot(times[before:], one_step[:, column], "o-", markersize=3, label="one step ahead")
        for begin, forecast in zip(begins, ahead, strict=True):
            steps = times[before + begin : before + begin + horizon]
            label = None if begin else f"{horizon} steps ahead, from each square on"
            line = axis.plot(steps, forecast[: len(steps), column], "--", color="C1", label=label)
            axis.plot(steps[0], forecast[0, column], "s", markersize=4, color=line[0].get_color())
        axis.axvline(times[before] - 0.5, color="0.8", linewidth=1)
        axis.set_title(name, parse_math=False, fontsize=TITLE)
        axis.grid(alpha=0.3)
        axis.legend(fontsize=7)
    entitle(figure, "Forecasts of the validation part, which begins at the line")
    return save(figure, out)
