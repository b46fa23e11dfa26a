"""Results of lm-evaluation-harness. Metrics are named TASK/METRIC, or TASK/METRIC,FILTER."""

import csv
from collections.abc import Iterator, Mapping
from io import StringIO
from pathlib import Path
from typing import Any

from ablate.run_files import ITEMS, read_text


def scores(results: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, str, str, Any]]:
    """Task, metric, full name and value of each entry of its `results`, without standard errors."""
    for task, measured in results.items():
        for key, value in measured.items():
            name, comma, filtered = key.partition(",")
            if comma and not name.endswith("_stderr"):
                more = "" if filtered == "none" else f",{filtered}"
                yield task, name, f"{task}/{name}{more}", value


def items(folder: Path, metric: str) -> list[float]:
    """The metric of each item from a run's items.csv, by the item's number; empty without it."""
    if not (path := folder / ITEMS).exists():
        return []
    rows = [row for row in csv.DictReader(StringIO(read_text(path))) if row["metric"] == metric]
    return [float(row["value"]) for row in sorted(rows, key=lambda row: int(row["item"]))]
