"""A made-up study folder, written as real runs write theirs, from a compact description.

    make_study(tmp_path / "scores", {
        "baseline": arm([1.50, 1.52, 1.49]),
        "model.attention=additive": arm([1.55, 1.56, "failed: loss became NaN at step 40"]),
    })

The first arm is the baseline. A value is the metric of a finished run, or all its metrics by name;
a text "STATUS: error" is a run that ended so ("failed", "refused") or says "running"; None is a run
that has no folder yet.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from make_runs import CHOICES, CONFIG, MadeArm, Texts, Value, overrides, values, write_run

BASE = [1.50, 1.53, 1.49, 1.52, 1.51]
ADDITIVE = "model.attention=additive"


def shifted(by: float) -> list[float]:
    """The baseline's values, all moved, so that pairs agree where the seeds do not."""
    return [value + by + 0.002 * (n % 3 - 1) for n, value in enumerate(BASE)]


def arm(values: Sequence[Value], **more: Any) -> MadeArm:
    return MadeArm(values, **more)


def scores(folder: Path) -> Path:
    """A study in `folder`: one arm is worse, one is alike, and one is not done."""
    unfinished = [*shifted(0.0)[:3], "failed: the loss became NaN", None]
    arms = {
        "baseline": arm(BASE),
        ADDITIVE: arm(shifted(0.1)),
        "model.attention=cosine": arm(shifted(0.0)),
        "model.attention=general": arm(unfinished),
    }
    return make_study(folder / "scores", arms)


def make_study(
    folder: Path,
    arms: Mapping[str, MadeArm],
    *,
    metric: str = "val/loss",
    mode: str = "min",
    design: str = "one_factor",
    factors: Mapping[str, Mapping[str, Sequence[str]]] | None = None,
    margin: float | None = None,
    match: Mapping[str, str] | None = None,
    tune: Mapping[str, Any] | None = None,
    illegal: Mapping[str, str] | None = None,
    excluded: Mapping[str, Mapping[str, str]] | None = None,
    sweep: str | None = None,
    asks: str = "",
    validations: int = 8,
    rows_per_validation: int = 2,
) -> Path:
    """Write it and return the folder, whose name is the study's.

    factors: read from the arms' changes unless given, the baseline's own option first.
    tune: key -> values tried; an arm's `tuned` says which was chosen, and its tuning runs are
    written for every value. Curves have `validations` points.
    """
    seeds = range(max(len(a.values) for a in arms.values()))
    arms = {name: replace(a, changes=_changes(name, a)) for name, a in arms.items()}
    points = (validations, rows_per_validation)
    cells: list[dict[str, Any]] = []
    for number, (name, made) in enumerate(arms.items()):
        texts = Texts(folder.name, name, made, metric=metric, mode=mode, points=points)
        for key, tried in (tune or {}).items():
            for value in tried:
                cell = _cell(name, made, 1000, "tune", extra=[f"{key}={value}"])
                cells.append(cell)
                write_run(folder / cell["folder"], cell, texts, _tuning_value(value))
        for seed, value in zip(seeds, made.values, strict=False):
            cell = _cell(made.same_as or name, made, seed, "run") | {"arm": name}
            cells.append(cell)
            if value is not None and made.same_as is None:
                write_run(folder / cell["folder"], cell, texts, value)
        assert number or not made.changes, "the first arm is the baseline"
    folder.mkdir(parents=True, exist_ok=True)
    factors = _factors(arms) if factors is None else factors
    plan = {
        "study": folder.name,
        "sweep": sweep,
        "asks": asks,
        "command": [f"sweep={sweep}"] if sweep else [],
        "written": "2026-11-20T16:00:00+00:00",
        "design": design,
        "factors": factors,
        "own": {factor: next(iter(options)) for factor, options in factors.items()},
        "seeds": list(seeds),
        "metric": {"name": metric, "mode": mode},
        "margin": margin,
        "match": match,
        "tune": {"keys": dict(tune), "seeds": [1000]} if tune else {},
        "baseline": {"overrides": [], "config": CONFIG | {"choices": CHOICES}},
        "arms": [
            _arm(name, a, baseline=not n) | {"tuning": _tuning(a, tune or {})}
            for n, (name, a) in enumerate(arms.items())
        ],
        "cells": cells,
        "illegal": [{"arm": name, "reason": reason} for name, reason in (illegal or {}).items()],
        "excluded": [{"arm": name, "by": dict(by)} for name, by in (excluded or {}).items()],
    }
    (folder / "plan.json").write_text(json.dumps(plan, indent=2))
    return folder


def _changes(name: str, made: MadeArm) -> Mapping[str, str]:
    """ "model.attention=additive pos_enc=none" -> its two changes; "baseline" -> none."""
    if made.changes is not None:
        return made.changes
    return dict(part.split("=", 1) for part in name.split() if "=" in part)


def _factors(arms: Mapping[str, MadeArm]) -> dict[str, dict[str, list[str]]]:
    """Factor -> option -> overrides, the baseline's own option first."""
    found: dict[str, dict[str, list[str]]] = {}
    for made in arms.values():
        for key, option in (made.changes or {}).items():
            own = _own(key)
            found.setdefault(key, {own: [] if own == "baseline" else [f"{key}={own}"]})
            found[key][option] = [f"{key}={option}"]
    return found


def _own(factor: str) -> str:
    """The baseline's option; "baseline" for a factor that is no config key."""
    value = _baseline_value(factor)
    return "baseline" if value is None else str(value).lower()


def _arm(name: str, made: MadeArm, *, baseline: bool) -> dict[str, Any]:
    own = values(made)
    return {
        "name": name,
        "is_baseline": baseline,
        "changes": dict(made.changes or {}),
        "overrides": overrides(made),
        "differs": {key: [_baseline_value(key), value] for key, value in own.items()},
        "parameters": made.parameters,
        "flops_per_step": made.flops,
        "no_effect": made.no_effect,
        "same_as": made.same_as,
        "set": dict(made.set),
        "tuned": dict(made.tuned),
    }


def _baseline_value(key: str) -> Any:
    if key in CHOICES:
        return CHOICES[key]
    node: Any = CONFIG
    for part in key.split("."):
        node = node.get(part) if isinstance(node, dict) else None
    return node


def _cell(
    name: str, made: MadeArm, seed: int, kind: str, *, extra: Sequence[str] = ()
) -> dict[str, Any]:
    run_id = sha256(json.dumps([name, seed, kind, *extra]).encode()).hexdigest()[:12]
    slug = re.sub(r"[^A-Za-z0-9.=_+-]", "_", name)[:80]
    found = [f"{key}={value}" for key, value in {**made.set, **made.tuned}.items()]
    own = [*overrides(made), *(extra or found), f"seed={seed}", f"study.arm='{name}'"]
    return {
        "arm": name,
        "seed": seed,
        "run_id": run_id,
        "folder": f"{'tune-' if kind == 'tune' else ''}{slug}-{run_id}",
        "kind": kind,
        "overrides": own,
    }


def _tuning(made: MadeArm, tune: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What each value came to; of several keys, one at a time."""
    return [
        {
            "point": {key: value},
            "mean": _tuning_value(value),
            "problems": [],
            "chosen": made.tuned.get(key) == value,
        }
        for key, tried in tune.items()
        for value in tried
    ]


def _tuning_value(value: Any) -> float:
    return 1.6 + abs(math.log10(float(value)) + 3) / 10
