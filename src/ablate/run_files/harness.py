"""Names of lm-evaluation-harness: TASK/METRIC, or TASK/METRIC,FILTER."""

from collections.abc import Iterator, Mapping
from typing import Any


def scores(results: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, str, str, Any]]:
    """Task, metric, full name and value of each entry of its `results`, without standard errors."""
    for task, measured in results.items():
        for key, value in measured.items():
            name, comma, filtered = key.partition(",")
            if comma and not name.endswith("_stderr"):
                more = "" if filtered == "none" else f",{filtered}"
                yield task, name, f"{task}/{name}{more}", value
