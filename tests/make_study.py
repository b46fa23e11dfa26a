"""A made-up study folder, written as real runs write theirs, from a compact description.

    make_study(tmp_path / "scores", {
        "baseline": arm([1.50, 1.52, 1.49]),
        "model.attention=additive": arm([1.55, 1.56, "failed: loss became NaN at step 40"]),
    })

The first arm is the baseline. A value is the metric of a finished run, or all its metrics by name;
a text "STATUS: error" is a run that ended so ("failed", "rejected") or says "running"; None is a
run that has no folder yet.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import yaml

Value = float | Mapping[str, float] | str | None

# What runs of the baseline are made of, as far as reports read it.
CHOICES = {
    **{"model": "gpt", "task": "causal_lm", "data": "pydoc", "trainer": "cpu"},
    **{"model.attention": "scaled_dot", "pos_enc": "learned"},
}
CONFIG = {
    "data": {"_target_": "ablate.data.pydoc.Pydoc", "seq_len": 64, "batch_size": 16},
    "optimizer": {"_target_": "torch.optim.AdamW", "lr": 0.002},
    "schedule": {"warmup": 100},
    "trainer": {"max_steps": 400},
    "model": {"heads": 4, "ffn_dim": None, "norm": "pre"},
}
BASE = [1.50, 1.53, 1.49, 1.52, 1.51]
ADDITIVE = "model.attention=additive"


def shifted(by: float) -> list[float]:
    """The baseline's values, all moved, so that pairs agree where the seeds do not."""
    return [value + by + 0.002 * (n % 3 - 1) for n, value in enumerate(BASE)]


@dataclass(frozen=True)
class MadeArm:
    """One arm: its value for every seed, and what its runs say about themselves."""

    values: Sequence[Value]
    changes: Mapping[str, str] | None = None  # None: read from the arm's name
    overrides: Sequence[str] | None = None  # None: the changes as they stand
    parameters: int = 814_720
    flops: int = 5_315_493_888
    steps: int = 400
    tokens: int = 1024  # a step
    seconds: float = 18.0
    fingerprint: str | None = "417ca3155441f15e"
    commit: str | None = "69eaca4d7721fb37bf31256683080f7f94e77888"
    dirty: bool = False
    source: str | None = "5ea1f00d5ea1f00d"
    host: str = "vm"
    caution: str | None = None
    no_effect: bool = False
    same_as: str | None = None
    set: Mapping[str, Any] = field(default_factory=dict)
    tuned: Mapping[str, Any] = field(default_factory=dict)

    def changed(self, name: str) -> dict[str, str]:
        """ "model.attention=additive pos_enc=none" -> its two changes; "baseline" -> none."""
        if self.changes is not None:
            return dict(self.changes)
        return dict(part.split("=", 1) for part in name.split() if "=" in part)

    def typed(self, name: str) -> list[str]:
        if self.overrides is not None:
            return list(self.overrides)
        return [f"{key}={option}" for key, option in self.changed(name).items()]

    def own(self, name: str) -> dict[str, Any]:
        """Config key -> the arm's value, where it is not the baseline's."""
        typed = dict(override.split("=", 1) for override in self.typed(name))
        return typed | dict(self.set) | dict(self.tuned)


arm = MadeArm


@pytest.fixture
def no_pdf(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fonts in PDFs are two thirds of a report's time."""

    def written(canvas: object, file: BytesIO, **metadata: object) -> None:
        file.write(b"%PDF")

    canvas = "matplotlib.backends.backend_pdf.FigureCanvasPdf"
    monkeypatch.setattr(f"{canvas}.print_pdf", written)


def change(file: Path, **content: Any) -> None:
    """Set keys of a file of JSON."""
    file.write_text(json.dumps(json.loads(file.read_text()) | content))


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
    tune: Mapping[str, Sequence[float]] = {},
    validations: int = 8,
    rows_per_validation: int = 2,
    **plan: Any,
) -> Path:
    """Write it and return the folder, whose name is the study's.

    tune: key -> values tried; an arm's `tuned` says which was chosen. Curves have `validations`
    points. plan: what plan.json has in place of, or beside, what follows from the arms.
    """
    folder.mkdir(parents=True, exist_ok=True)
    seeds = range(max(len(a.values) for a in arms.values()))
    cells: list[dict[str, Any]] = []
    for name, made in arms.items():
        config = _config(name, made)
        points = (validations, rows_per_validation)
        for key, tried in tune.items():
            for value in tried:
                cells.append(_cell(name, made, 1000, "tune", [f"{key}={value}"]))
                _write_run(folder, cells[-1], made, config, _tuning_value(value), points)
        for seed, value in zip(seeds, made.values, strict=False):
            cells.append(_cell(made.same_as or name, made, seed, "run") | {"arm": name})
            if value is not None and made.same_as is None:
                _write_run(folder, cells[-1], made, config, value, points)
    factors = plan.pop("factors", _factors(arms))
    content = {
        "study": folder.name,
        "sweep": None,
        "asks": "",
        "command": [],
        "written": "2026-11-20T16:00:00+00:00",
        "design": "one_factor",
        "factors": factors,
        "own": {factor: next(iter(options)) for factor, options in factors.items()},
        "seeds": list(seeds),
        "metric": {"name": "val/loss", "mode": "min"},
        "margin": None,
        "match": None,
        "tune": {"keys": dict(tune), "seeds": [1000]} if tune else {},
        "baseline": {
            "overrides": [],
            **dict.fromkeys(("asked", "config"), CONFIG | {"choices": CHOICES}),
        },
        "arms": [_arm(name, a, tune, baseline=not n) for n, (name, a) in enumerate(arms.items())],
        "cells": cells,
        "illegal": [],
        "excluded": [],
    }
    (folder / "plan.json").write_text(json.dumps(content | plan, indent=2))
    return folder


def _factors(arms: Mapping[str, MadeArm]) -> dict[str, dict[str, list[str]]]:
    """Factor -> option -> overrides, the baseline's own option first."""
    found: dict[str, dict[str, list[str]]] = {}
    for name, made in arms.items():
        for key, option in made.changed(name).items():
            value = _baseline_value(key)
            found.setdefault(key, {"baseline" if value is None else str(value): []})
            found[key][option] = [f"{key}={option}"]
    return found


def _baseline_value(key: str) -> Any:
    node: Any = CHOICES.get(key, CONFIG)
    for part in [] if key in CHOICES else key.split("."):
        node = node.get(part) if isinstance(node, dict) else None
    return node


def _arm(
    name: str, made: MadeArm, tune: Mapping[str, Sequence[float]], *, baseline: bool
) -> dict[str, Any]:
    tuning = [
        {"point": {key: value}, "mean": _tuning_value(value), "problems": [],
         "chosen": made.tuned.get(key) == value}
        for key, tried in tune.items() for value in tried
    ]  # fmt: skip
    return {
        "name": name,
        "is_baseline": baseline,
        "changes": made.changed(name),
        "overrides": made.typed(name),
        "differs": {key: [_baseline_value(key), value] for key, value in made.own(name).items()},
        "parameters": made.parameters,
        "flops_per_step": made.flops,
        "no_effect": made.no_effect,
        "same_as": made.same_as,
        "set": dict(made.set),
        "tuned": dict(made.tuned),
        "tuning": tuning,
    }


def _cell(
    name: str, made: MadeArm, seed: int, kind: str, trial: Sequence[str] = ()
) -> dict[str, Any]:
    run_id = sha256(json.dumps([name, seed, kind, *trial]).encode()).hexdigest()[:12]
    slug = re.sub(r"[^A-Za-z0-9.=_+-]", "_", name)[:80]
    return {
        "arm": name,
        "seed": seed,
        "run_id": run_id,
        "folder": f"{'tune-' if kind == 'tune' else ''}{slug}-{run_id}",
        "kind": kind,
        "overrides": [*made.typed(name), *trial, f"seed={seed}", f"study.arm='{name}'"],
    }


def _tuning_value(value: float) -> float:
    return 1.6 + abs(math.log10(value) + 3) / 10


def _config(name: str, made: MadeArm) -> dict[str, Any]:
    """The content of config.yaml, with what the arm changes."""
    config: dict[str, Any] = json.loads(json.dumps(CONFIG | {"choices": CHOICES}))
    for key, value in made.own(name).items():
        *path, leaf = ("choices", key) if key in CHOICES else key.split(".")
        node = config
        for part in path:
            node = node.setdefault(part, {})
        node[leaf] = value
    return config


def _write_run(
    folder: Path,
    cell: Mapping[str, Any],
    made: MadeArm,
    config: Mapping[str, Any],
    value: Value,
    points: tuple[int, int],
) -> None:
    place = folder / cell["folder"]
    place.mkdir()
    provenance = {
        "git": made.commit and {"commit": made.commit, "dirty": made.dirty},
        "source": made.source,
        "packages": {"ablate": "0.1.0", "torch": "2.15.0"},
        "python": "3.11.2",
        "host": made.host,
        "gpus": [],
        "data_fingerprint": made.fingerprint,
    }
    (place / "config.yaml").write_text(yaml.safe_dump({"seed": cell["seed"], **config}))
    (place / "provenance.json").write_text(json.dumps(provenance))
    result = _result(cell, made, config, value) | {"study": folder.name}
    (place / "result.json").write_text(json.dumps(result))
    (place / "metrics.csv").write_text(_curve(made.steps, _metrics(value).get("val/loss"), points))


def _metrics(value: Value) -> dict[str, float]:
    if isinstance(value, Mapping):
        return dict(value)
    if value is None or isinstance(value, str):
        return {}
    return {"val/loss": value, "val/perplexity": math.exp(min(value, 50.0))}


def _result(
    cell: Mapping[str, Any], made: MadeArm, config: Mapping[str, Any], value: Value
) -> dict[str, Any]:
    status, _, error = value.partition(": ") if isinstance(value, str) else ("finished", "", "")
    metrics = _metrics(value)
    content = {
        "status": status,
        "error": error or None,
        "arm": cell["arm"],
        "seed": cell["seed"],
        "run_id": cell["run_id"],
        "metric": {"name": "val/loss", "value": metrics.get("val/loss"), "mode": "min"},
        "metrics": metrics,
        "parameters": dict.fromkeys(("total", "trainable", "non_embedding"), made.parameters),
        "flops_per_step": made.flops,
        "kernels": {"stack.blocks.0.attention.function": "sdpa"},
        "choices": config["choices"],
    }
    if made.caution:
        content["caution"] = made.caution
    if status == "finished":
        seconds = made.seconds * (1 + 0.02 * math.sin(cell["seed"]))
        rate = made.steps * made.tokens / seconds
        content |= {"throughput": {"unit": "tokens/s", "value": rate}, "train_seconds": seconds}
        content |= {"steps": made.steps, "best_step": made.steps, "peak_memory_bytes": 3 * 10**8}
    if status != "running":
        content |= {"wall_seconds": made.seconds + 2, "logged_to": None}
    return content


def _curve(steps: int, end: float | None, points: tuple[int, int]) -> str:
    """Training loss and validation loss, which fall to their end; halfway there without one."""
    validations, between = points
    last, whole = (validations if end is not None else validations // 2), validations * between
    lines = ["step,train/loss,val/loss"]
    for n in range(1, last * between + 1):
        now = (1.6 if end is None else end) + 1.5 * (math.exp(-5 * n / whole) - math.exp(-5))
        lines.append(f"{round(steps * n / whole)},{now * 0.97},{'' if n % between else now}")
    return "\n".join(lines) + "\n"
