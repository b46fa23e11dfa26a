"""Atomic writes of small files: a reader sees the old one or the new one.

Every file is written under another name in the same folder, flushed to the disk, then renamed.
"""

import json
import math
import os
from pathlib import Path
from typing import Any

# In a run's folder: its result, and its progress while it trains.
RESULT, PROGRESS = "result.json", "progress.json"
PLAN = "plan.json"  # in a study's folder
# Weights of a run with the best validation; the second is from before 2026-11-23.
BEST, FIRST_BEST = "best.safetensors", "best.ckpt"


def best_weights(run_dir: Path) -> Path:
    """Return the path of a run's best weights, which may not exist yet."""
    first = run_dir / "checkpoints" / FIRST_BEST
    best = run_dir / "checkpoints" / BEST
    return first if first.exists() and not best.exists() else best


def write_text(path: Path, text: str, *, flush: bool = True) -> None:
    """Replace a text file; `flush=False` if a power failure may lose it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(text)
        if flush:
            file.flush()
            os.fsync(file.fileno())
    os.replace(temporary, path)


def write_json(path: Path, content: dict[str, Any], *, flush: bool = True) -> None:
    """Strict JSON: a number that is not finite becomes null."""
    write_text(path, json.dumps(_finite(content), indent=2, allow_nan=False) + "\n", flush=flush)


def read_json(path: Path) -> dict[str, Any] | None:
    """The content, or None if there is no such file."""
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def read_mapping(path: Path) -> dict[str, Any]:
    """The content; empty if there is no such file, or if it is not a JSON mapping."""
    try:
        found = read_json(path)
    except (FileNotFoundError, ValueError, RecursionError):  # removed in between; damaged by hand
        return {}
    return found if isinstance(found, dict) else {}


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
