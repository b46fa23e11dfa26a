"""What result.json and plan.json hold, verified wherever they are read."""

import json
from pathlib import Path
from types import NoneType
from typing import Any

from ablate.errors import UserError
from ablate.files import PLAN, RESULT
from ablate.shape import misfit

NUMBER = (float, NoneType)  # null where it was not finite
METRIC = {"name": str, "mode": str, "value?": NUMBER}
# What every finished run has, and the command prints.
FINISHED = {
    "seed": int,
    "metric": METRIC,
    "metrics": {str: NUMBER},
    "parameters": {"total": int, "non_embedding": int},
    "flops_per_step": int,
    "kernels": {str: str},
    "choices": {"model": str, "task": str},
    "steps": int,
    "best_step": int,
    "train_seconds": float,
    "throughput": {"unit": str, "value": float},
    "wall_seconds": float,
    "logged_to": (str, NoneType),
}
RESULT_SHAPE = {
    "status?": str,
    "error?": (str, NoneType),
    "run_id?": (str, NoneType),
    "arm?": (str, NoneType),
    "packed?": int,
    "peak_memory_bytes?": int,
    **{f"{key}?": shape for key, shape in FINISHED.items()},
    "parameters?": {str: int},
    "choices?": dict,
}
TRIAL = {"point": dict, "mean": NUMBER, "chosen": bool, "problems": [str]}
ARM = {
    "name": str,
    "is_baseline?": bool,
    "changes?": {str: str},
    "overrides?": [str],
    "differs?": {str: list},
    "parameters?": (int, NoneType),
    "flops_per_step?": (int, NoneType),
    "steps?": (int, NoneType),
    "no_effect?": (bool, NoneType),
    "same_as?": (str, NoneType),
    "set?": dict,
    "tuned?": dict,
    "tuning?": [TRIAL],
    "warnings?": [str],
}
PLAN_SHAPE = {
    "study": str,
    "seeds": [int],
    "metric": {"name": str, "mode": str},
    "arms": [ARM],
    "cells": [
        {"arm": str, "seed": int, "run_id": str, "folder": str, "kind": str, "overrides?": [str]}
    ],
    "asks?": (str, NoneType),
    "command?": [str],
    "design?": str,
    "resolution?": (int, NoneType),
    "factors?": {str: dict},
    "own?": dict,
    "margin?": NUMBER,
    "match?": (NoneType, {"budget": str, "by": str}),
    "tune?": dict,
    "baseline?": {
        "overrides?": [str],
        "asked?": dict,
        "data?": dict,
        "config?": dict.fromkeys(
            ("choices?", "model?", "data?", "optimizer?", "schedule?", "trainer?"), dict
        ),
    },
    "illegal?": [{"arm": str, "reason": str}],
    "excluded?": [{"arm": str, "by": dict}],
}


def read_result(run_dir: Path) -> tuple[dict[str, Any], str]:
    """Return the content of result.json, empty without one, and what is wrong with a damaged file,
    whose content is not returned."""
    path = run_dir / RESULT
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        wrong = misfit(found, RESULT_SHAPE)
    except FileNotFoundError:
        return {}, ""
    except (ValueError, RecursionError) as error:
        wrong = str(error)
    return ({}, f"{path} cannot be read: {wrong}") if wrong else (found, "")


def read_plan(study_dir: Path) -> dict[str, Any] | None:
    """Return the content of plan.json, None without one; raise UserError for a damaged file."""
    path = study_dir / PLAN
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        wrong = misfit(found, PLAN_SHAPE)
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError) as error:
        wrong = str(error)
    if wrong:
        raise UserError(f"{path} cannot be read, or is not the plan of a study: {wrong}")
    plan: dict[str, Any] = found
    return plan
