"""The folder of a run: the numbers of its result.json, and its curves, which are read on demand."""

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ablate.run_files import LARGEST, CorruptFile, read_text


@dataclass(frozen=True)
class Folder:
    """The folder of a run, and the content of its result.json; reads figures and curves."""

    folder: Path
    result: Mapping[str, Any]

    def number(self, *path: str) -> float | None:
        """A number of result.json, such as ("parameters", "total"); None if there is none."""
        value: Any = self.result
        for part in path:
            value = (value or {}).get(part)
        return None if value is None else float(value)

    @property
    def training_flops(self) -> float | None:
        """The FLOPs of the whole training."""
        step, steps = self.number("flops_per_step"), self.number("steps")
        return None if step is None or steps is None else step * steps

    @property
    def trained(self) -> float | None:
        """The amount of training data, in `unit`, independent of batches and windows."""
        rate, seconds = self.number("throughput", "value"), self.number("train_seconds")
        return None if rate is None or seconds is None else rate * seconds

    @property
    def unit(self) -> str:
        """The unit of the training data, such as tokens; "" if unknown."""
        return str((self.result.get("throughput") or {}).get("unit", "")).removesuffix("/s")

    def curve(self, column: str) -> list[tuple[int, float]]:
        """Steps and finite values of a column of metrics.csv; empty if there is none."""
        try:
            points = [(row["step"], row[column]) for row in self._rows() if row.get(column)]
            pairs = [(int(float(at)), float(value)) for at, value in points]
        except (KeyError, ValueError, OverflowError):
            return []
        return [(at, value) for at, value in pairs if abs(value) <= LARGEST]

    def validations(self) -> int:
        """How often training was validated: the best weights are the best of as many."""
        steps = (
            row.get("step")
            for row in self._rows()
            if any(value and name and name.startswith("val/") for name, value in row.items())
        )
        return len({*steps})

    def _rows(self) -> list[dict[str, str]]:
        """The rows of metrics.csv; none if it cannot be read."""
        try:
            return [*csv.DictReader(read_text(self.folder / "metrics.csv").splitlines())]
        except (CorruptFile, OSError, csv.Error):
            return []
