"""The content of result.json and plan.json, verified at every read."""

import os
from pathlib import Path, PurePosixPath
from types import NoneType
from typing import Any

from ablate.errors import UserError, shortened
from ablate.run_files import (
    BEST,
    PLAN,
    RESULT,
    CorruptFile,
    best_weights,
    read_json,
    refuse_links,
)
from ablate.run_files.shape import schema_error

WEIGHTS_MISSING = (
    f"its weights, checkpoints/{BEST}, are missing; remove the run's folder to train it again"
)
LONGEST_NAME = 255  # bytes of a folder's name in a plan
MODE = frozenset({"min", "max"})
NUMBER = (float, NoneType)  # null if it was not finite
METRIC = {"name": str, "mode": MODE, "value?": NUMBER}
# Entries of every finished run, which the command prints.
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
    "throughput": {"unit": str, "value": float, "waiting?": float, "mfu?": float},
    "wall_seconds": float,
    "logged_to": (str, NoneType),
}
RESULT_SHAPE = {
    "status?": str,
    "error?": (str, NoneType),
    "run_id?": (str, NoneType),
    "arm?": (str, NoneType),
    "peak_memory_bytes?": int,
    "chosen_on?": {"examples": int, "of": int, "value": NUMBER},
    "logged_steps?": {str: int},
    "epochs?": {str: float},
    "trunk?": {"folder": str, "run_id": str, "step": int},
    "cache_bytes?": {"per_token": int, "state": int},
    "not_evaluated?": {str: str},
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
    "metric": {"name": str, "mode": MODE},
    "arms": [ARM],
    "cells": [
        {
            "arm": str,
            "seed": int,
            "run_id": str,
            "folder": str,
            "kind": str,
            "overrides?": [str],
            "sha256?": str,
        }
    ],
    "also?": [str],
    "asks?": (str, NoneType),
    "command?": [str],
    "design?": str,
    "resolution?": (int, NoneType),
    "factors?": {str: dict},
    "own?": dict,
    "margin?": NUMBER,
    "noise?": (NoneType, {"files": [dict], "after": bool}),
    "looks?": (NoneType, {"seeds": [int], "after": bool}),
    "claims?": [{"claim": dict, "made": str, "after": bool, "dropped": bool}],
    "blocks?": {"factor": str, "of": {str: {"folder": str}}},
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
    "custom_code?": {str: str},
    "illegal?": [{"arm": str, "reason": str}],
    "excluded?": [{"arm": str, "by": dict}],
}


def read_result(run_dir: Path) -> tuple[dict[str, Any], str]:
    """Return the content of result.json, empty without one or if it is damaged, and the damage.
    Raises UserError for a link out of the folder."""
    refuse_links(run_dir)
    try:
        return _read(run_dir / RESULT, RESULT_SHAPE, "the result of a run") or {}, ""
    except CorruptFile as error:
        return {}, str(error)


def require_weights(run_dir: Path, typed: str) -> Path:
    """Return the path of a run's best weights; UserError if they are missing. typed: how the folder
    was given."""
    if (best := best_weights(run_dir)).exists():
        return best
    if read_result(run_dir)[0].get("status") == "finished":
        raise UserError(f"{typed} is finished, but {WEIGHTS_MISSING}")
    raise UserError(f"{typed} has no weights yet: checkpoints/{BEST} is missing")


def read_plan(study_dir: Path) -> dict[str, Any] | None:
    """Return the content of plan.json, None without one; raise CorruptFile if it is not that of a
    study, UserError for a link out of the folder."""
    refuse_links(study_dir)
    if plan := _read(study_dir / PLAN, PLAN_SHAPE, "the plan of a study"):
        blocks = plan.get("blocks", {"of": {}})["of"].values()
        folders = {entry["folder"] for entry in (*plan["cells"], *blocks)}
        if outside := [name for name in folders if not _is_inside(name)]:
            raise CorruptFile(
                study_dir / PLAN,
                f"{shortened(repr(min(outside)), 80)} is not the name of a folder in the study",
            )
        refuse_links(study_dir, {str(PurePosixPath(name).parent) for name in folders})
    return plan


def _is_inside(name: str) -> bool:
    path = PurePosixPath(name)
    inside = path.parts and ".." not in path.parts and not path.is_absolute()
    return bool(inside) and "\0" not in name and len(os.fsencode(name)) <= LONGEST_NAME


def _read(path: Path, shape: dict[Any, Any], what: str) -> dict[str, Any] | None:
    content: dict[str, Any] | None = read_json(path)
    if content is None and not path.exists():
        return None
    if wrong := schema_error(content, shape):
        raise CorruptFile(path, f"it is not {what}: {wrong}")
    return content
