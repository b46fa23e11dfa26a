"""Predictions of a finished run for each example of its test split, or validation split without
one.

predictions.csv in the run's folder has a row for each example in the order of the data: its number,
its loss, and the task's other columns (`Presenter.predictions`).
"""

import csv
from collections.abc import Collection
from io import StringIO
from pathlib import Path

import torch

from ablate.run_files import PREDICTIONS, read_text, write_csv
from ablate.training.load import Run, load


def write_predictions(run: Run) -> Path:
    """Predict with the best weights. UserError for a task whose examples have no loss."""
    of_test, presenter = run.data.test_dataloader(), run.task.presenter(run.task)
    columns: dict[str, list[float]] = {}
    with torch.no_grad():
        for batch in run.data.val_dataloader() if of_test is None else of_test:
            for name, values in presenter.predictions(batch).items():
                columns.setdefault(name, []).extend(values.tolist())
    rows = ([n, *row] for n, row in enumerate(zip(*columns.values(), strict=True)))
    path = run.path / PREDICTIONS
    write_csv(path, [["example", *columns], *rows])
    return path


def losses(run_dir: Path, allow: Collection[str] = ()) -> list[float]:
    """The loss of each example, from predictions.csv, which is written if there is none."""
    path = run_dir / PREDICTIONS
    if not path.exists():
        write_predictions(load(run_dir, allow=allow))
    return [float(row["loss"]) for row in csv.DictReader(StringIO(read_text(path)))]
