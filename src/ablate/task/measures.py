"""The measures of a task: their names, and that each is a number."""

import math
import warnings
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from ablate.errors import UserError, suggest


def names_of_measures(task: Any, split: str) -> list[str]:
    """The names of all that `measures` may return after training, before anything is measured;
    none if one of them needs examples, as some of torchmetrics do. UserError for a measure that
    is not one number.

    Needs a trainer that is not fitting.
    """
    measures: dict[str, Tensor] = {}
    with warnings.catch_warnings(), suppress(Exception):
        warnings.simplefilter("ignore")  # torchmetrics warns of a mean of nothing
        measures = task.measures(split)
    require_numbers(task, measures)
    return list(measures)


def require_numbers(task: Any, measures: Mapping[str, Any]) -> None:
    for name, value in measures.items():
        try:
            shape = tuple(torch.as_tensor(value).shape)
            wrong = "" if math.prod(shape) == 1 else f"has the shape {shape}"
        except (TypeError, ValueError, RuntimeError):
            wrong = f"is a {type(value).__name__}"
        if wrong:
            raise UserError(
                f"{type(task).__name__}.measures: {name} {wrong}, and a measure is one number"
            )


def require_metric(task: Any) -> None:
    """Raise UserError unless `metric` is a measure of validation, and `mode` min or max. Needs
    a trainer that is not fitting."""
    name = type(task).__name__
    if task.mode not in ("min", "max"):
        raise UserError(f"{name}.mode={task.mode}: must be min or max")
    names = [f"val/{measure}" for measure in names_of_measures(task, "val")]
    if names and task.metric not in names:
        raise UserError(
            f"{name}.metric={task.metric} is not measured; allowed:"
            f" {', '.join(names)}{suggest(task.metric, names)}"
        )
