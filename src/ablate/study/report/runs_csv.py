"""runs.csv: every run with its factors, its state and its numbers."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas as pd

from ablate.study.analysis.collect import Study, StudyRun

NUMBERS = (
    "flops_per_step", "steps", "best_step", "train_seconds", "wall_seconds", "peak_memory_bytes"
)  # fmt: skip


def runs_csv(study: Study) -> str:
    """Write one row per run, tuning runs included. The arm is the one that trained it; `same_as`
    names the others that share the run."""
    rows = [*_rows("run", study.runs, study), *_rows("tune", study.tuning, study)]
    text: str = pd.DataFrame(rows, dtype=object).to_csv(index=False, lineterminator="\n")
    return text


def _rows(kind: str, runs: Iterable[StudyRun], study: Study) -> list[dict[str, Any]]:
    """Return a row per folder; of several cells, the first one's arm trained there (cells.py)."""
    cells: dict[Path, list[StudyRun]] = {}
    for run in runs:
        cells.setdefault(run.folder, []).append(run)
    return [
        {
            **dict.fromkeys(("arm", "same_as", "seed")),  # the first columns
            **study.options(run.arm, run.block),
            "arm": run.arm,
            "same_as": "; ".join(other.arm for other in others),
            "seed": run.seed,
            "kind": kind,
            "state": run.state,
            "run_id": run.run_id,
            "folder": run.folder.name,
            "detail": run.detail,
            **{name: run.result.get(name) for name in NUMBERS},
            "rate": run.number("throughput", "value"),
            **{f"parameters/{name}": run.number("parameters", name)
               for name in ("total", "trainable", "non_embedding")},
            **{f"choice/{key}": option for key, option in run.result.get("choices", {}).items()},
            **run.result.get("metrics", {}),
        }
        for run, *others in cells.values()
    ]  # fmt: skip
