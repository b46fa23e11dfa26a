"""Time series: the first part is for training, the next for validation, the last for the test.

By default the yearly sunspot numbers from 1700 to 2008 of the National Geophysical Data Center,
from statsmodels (statsmodels.datasets.sunspots, public domain).
"""

import logging
from collections.abc import Sequence
from functools import cached_property
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad
from torch.utils.data import Dataset

from ablate.config.conflicts import Conflict
from ablate.config.rules import Count, Fraction
from ablate.data import Data, digest
from ablate.data.interface import Sizes
from ablate.data.loader import Batch, Request
from ablate.errors import UserError
from ablate.systems.forecasting.columns import read_columns

log = logging.getLogger(__name__)
SUNSPOTS, FIRST_YEAR, CYCLE = "SUNACTIVITY", 1700, 11  # column, first row, and years of a cycle


class TrainingWindows(Dataset[Batch]):
    """Every window of `window` + 1 values; an index is the position of its first."""

    def __init__(self, values: Tensor, window: int) -> None:
        self.windows = values.unfold(0, window + 1, 1).mT  # window, i + 1, c

    def __len__(self) -> int:
        return len(self.windows)

    def __getitem__(self, request: Request) -> Batch:
        window = self.windows[request.indices]
        return {"values": window[:, :-1], "targets": window[:, 1:]}


class MeasuredWindows(Dataset[Batch]):
    """For each value from `first` on: the `window` values before it, and the `horizon` values from
    it on. Values beyond the end are NaN.
    """

    def __init__(self, values: Tensor, first: int, *, window: int, horizon: int) -> None:
        self.past = values[first - window : -1].unfold(0, window, 1).mT
        future = pad(values[first:], (0, 0, 0, horizon - 1), value=torch.nan)
        self.future = future.unfold(0, horizon, 1).mT

    def __len__(self) -> int:
        return len(self.past)

    def __getitem__(self, request: Request) -> Batch:
        rows = request.indices
        return {"values": self.past[rows], "future": self.future[rows]}


class Series(Data):
    """A time series with one number per column and time step.

    path: a CSV file whose first row names its columns, or an http(s) URL; null: the sunspots. A
    column of dates or times, if there is one, orders its rows (row_times.py).
    columns: of that file. window: values that the model reads. horizon: values in a row that are
    forecast. period: values after which the series repeats; null: 11 for the sunspots, unknown for
    a file.

    `mean` and `deviation` (standard deviation), each c, are of the training values. Values in
    batches, `b i c`, are normalized by them. `latest`: the last window, 1 i c; `count`: of all
    values.

    Every value of the validation and of the test part is a target exactly once;
    its window may reach into the part before.
    """

    kind: ClassVar[str] = "a time series"
    length_key: ClassVar[str] = "window"
    unit: ClassVar[str] = "windows"
    conflicts = (
        Conflict(
            lambda c: c("data.columns") is not None and c("data.path") is None,
            "data.columns={data.columns}: the sunspots have one column; set data.path=FILE, or"
            " data.columns=null",
        ),
        Conflict(
            lambda c: (c("data.period") or 0) > c("data.window"),
            "data.window={data.window}: the seasonal naive forecast repeats the last"
            " data.period={data.period} values, so the window must be at least as long",
        ),
        Conflict(
            lambda c: (c("data.val_fraction") or 0) + (c("data.test_fraction") or 0) >= 1,
            "data.val_fraction={data.val_fraction} and data.test_fraction={data.test_fraction}"
            " leave nothing to train on",
        ),
    )
    mean: NDArray[np.float64]
    deviation: NDArray[np.float64]

    def __init__(
        self,
        *,
        path: str | None,
        columns: Sequence[str] | None,
        window: Count,
        horizon: Count,
        period: Count | None,
        val_fraction: Fraction,
        test_fraction: Fraction | None,
        batch_size: Count,
        seed: int,
    ) -> None:
        super().__init__(batch_size=batch_size, seed=seed)
        self.path, self.window, self.horizon = path, window, horizon
        if columns is not None and path is None:
            raise UserError(
                f"data.columns=[{','.join(columns or ())}]: the sunspots have one column; set"
                " data.path=FILE, or data.columns=null"
            )
        self.columns = None if columns is None else list(columns)
        if self.columns is not None and len(set(self.columns)) < len(self.columns):
            raise UserError(f"data.columns=[{','.join(self.columns)}]: names a column twice")
        self.period = CYCLE if period is None and path is None else period
        if self.period is not None and self.period > window:
            raise UserError(
                f"data.window={window}: the seasonal naive forecast repeats the last"
                f" data.period={self.period} values, so the window must be at least as long"
            )
        self.shares = {"val": val_fraction, "test": test_fraction or 0.0}

    @cached_property
    def _file(self) -> tuple[NDArray[np.float64], list[str]]:
        """The values, n c, in the unit of the data, and warnings on their rows."""
        if self.path is not None:
            return read_columns(self.path, self.columns)
        # Not imported: statsmodels would bring pandas, which takes a second.
        package = find_spec("statsmodels")
        assert package is not None
        assert package.submodule_search_locations
        folder = Path(package.submodule_search_locations[0], "datasets", "sunspots")
        return read_columns(str(folder / "sunspots.csv"), [SUNSPOTS])

    @property
    def names(self) -> list[str]:
        """The names of the columns."""
        return self.columns or [SUNSPOTS]

    def fingerprint(self) -> str:
        values, _ = self._file
        content = sha256(values.tobytes()).hexdigest()
        return digest(content, values.shape, "in order", self.shares)

    def load(self) -> None:
        values, warnings = self._file
        for line in warnings:
            log.warning("ablate: %s", line)
        count = len(values)
        if self.whole:  # the first window is only read
            if count < self.window + self.horizon:
                raise UserError(
                    f"data.path={self.path}: has {count} values, and data.window={self.window} with"
                    f" data.horizon={self.horizon} needs at least {self.window + self.horizon}"
                )
            self.shares = {"val": 1 - self.window / max(count, 1), "test": 0.0}
        held = {split: round(count * share) for split, share in self.shares.items()}
        ends = {"train": count - sum(held.values()), "val": count - held["test"], "test": count}
        self._require_room(ends, held)
        if isinstance(self.measured_as, Series):
            self.mean, self.deviation = self.measured_as.mean, self.measured_as.deviation
        else:
            self.mean, self.deviation = self._statistics(values[: ends["train"]])
        if len(self.mean) != len(self.names):
            raise UserError(
                f"data.columns: the model was trained on {len(self.mean)} column(s), these are"
                f" {len(self.names)}: {', '.join(self.names)}"
            )
        self.values, self.count = self.normalize(values), count
        self.latest = self.values[None, -self.window :].clone()
        self.starts = {"train": 0, "val": ends["train"], "test": ends["val"]}
        self.splits = {}
        if not self.whole:
            self.splits["train"] = TrainingWindows(self.values[: ends["train"]], self.window)
        for split, share in self.shares.items():
            if share:
                self.splits[split] = MeasuredWindows(
                    self.values[: ends[split]],
                    self.starts[split],
                    window=self.window,
                    horizon=self.horizon,
                )
        self.sizes = Sizes(channels=len(self.names), length=self.window)

    def fitted(self) -> dict[str, Any]:
        return {
            **{"mean": self.mean.tolist(), "deviation": self.deviation.tolist()},
            **{"count": self.count, "latest": self.latest, "starts": self.starts},
        }

    def use_fitted(self, fitted: dict[str, Any]) -> None:
        self.mean, self.deviation = np.array(fitted["mean"]), np.array(fitted["deviation"])
        self.count, self.latest = fitted["count"], fitted["latest"]
        self.starts = fitted["starts"]

    def normalize(self, values: NDArray[np.float64]) -> Tensor:
        """n c in the unit of the data -> normalized values."""
        return torch.from_numpy((values - self.mean) / self.deviation).float()

    def restore(self, values: Tensor) -> NDArray[np.float64]:
        """The inverse of `normalize`, for any shape that ends in c."""
        restored: NDArray[np.float64] = values.double().cpu().numpy() * self.deviation + self.mean
        return restored

    def time(self, step: int) -> str:
        """The label of a time step: the year for the sunspots, else its row, from 1."""
        return str(step + (FIRST_YEAR if self.path is None else 1))

    def example(self, index: int = 0) -> dict[str, Any]:
        """A validation window, with `labels`: its time steps."""
        first = self.starts["val"] + index - self.window
        labels = [self.time(first + step) for step in range(self.window)]
        return super().example(index) | {"labels": labels}

    def _statistics(
        self, training: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        with np.errstate(over="ignore"):
            mean, deviation = training.mean(0), training.std(0)
        for name, spread in zip(self.names, deviation, strict=True):
            if not np.isfinite(spread):
                raise UserError(
                    f"data.columns: column '{name}' has values too large for a standard deviation;"
                    " write them in another unit"
                )
            if not spread > 0:
                raise UserError(
                    f"data.columns: column '{name}' has the same value throughout the training"
                    " part, so it cannot be normalized; leave it out"
                )
        return mean, deviation

    def _require_room(self, ends: dict[str, int], held: dict[str, int]) -> None:
        shares = ", ".join(f"data.{s}_fraction={v}" for s, v in self.shares.items() if v)
        where = f"of {ends['test']} values ({shares})"
        if ends["train"] <= self.window and not (self.whole and ends["train"] == self.window):
            raise UserError(
                f"data.window={self.window}: the training part {where} has"
                f" {max(ends['train'], 0)} and needs at least {self.window + 1}"
            )
        for split, share in self.shares.items():
            if share and held[split] < self.horizon:
                raise UserError(
                    f"data.horizon={self.horizon}: the {split} part {where} has {held[split]}"
                    " and needs at least as many"
                )
