"""The files of a made-up run, as real runs write them (record.py, curves.py)."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

Value = float | Mapping[str, float] | str | None

# The config of a real run, shortened: what an arm changes is set in it.
CONFIG: dict[str, Any] = {
    "output_dir": "outputs",
    "data": {"_target_": "ablate.data.pydoc.Pydoc", "seq_len": 64, "batch_size": 16},
    "pos_enc": {"_target_": "ablate.pos_enc.learned.Learned", "_partial_": True},
    "optimizer": {"_target_": "torch.optim.AdamW", "_partial_": True, "lr": 0.002},
    "schedule": {"_target_": "ablate.schedule.cosine.cosine", "_partial_": True, "warmup": 100},
    "trainer": {"_target_": "lightning.pytorch.Trainer", "max_steps": 400, "accelerator": "cpu"},
    "model": {
        "attention": {"_target_": "ablate.model.attention.scaled_dot.ScaledDot"},
        "_target_": "ablate.model.gpt.GPT",
        "dim": 128,
        "depth": 4,
        "heads": 4,
        "ffn": "gelu",
        "ffn_dim": None,
        "norm": "pre",
        "residual": True,
    },
}
CHOICES = {
    "model": "gpt",
    "model.attention": "scaled_dot",
    "pos_enc": "learned",
    "task": "causal_lm",
    "data": "pydoc",
    "trainer": "cpu",
}
PACKAGES = {"ablate": "0.1.0", "torch": "2.15.0", "lightning": "2.6.6", "numpy": "2.4.6"}


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
    no_effect: bool = False
    same_as: str | None = None
    set: Mapping[str, Any] = field(default_factory=dict)
    tuned: Mapping[str, Any] = field(default_factory=dict)


def overrides(made: MadeArm) -> list[str]:
    if made.overrides is not None:
        return list(made.overrides)
    return [f"{key}={option}" for key, option in (made.changes or {}).items()]


def values(made: MadeArm) -> dict[str, Any]:
    """Config key -> the arm's own value, from its overrides and what match and tune set."""
    typed = dict(override.split("=", 1) for override in overrides(made))
    return typed | dict(made.set) | dict(made.tuned)


class Texts:
    """What the files of an arm's runs hold; made once an arm, since 10,000 runs have few arms."""

    def __init__(
        self,
        study: str,
        name: str,
        made: MadeArm,
        *,
        metric: str,
        mode: str,
        points: tuple[int, int],
    ):
        self.study, self.name, self.made = study, name, made
        self.metric, self.mode, self.points = metric, mode, points
        config = json.loads(json.dumps(CONFIG)) | {"choices": dict(CHOICES)}
        for key, value in values(made).items():
            if key in CHOICES:
                config["choices"][key] = value
            else:
                *path, leaf = key.split(".")
                node = config
                for part in path:
                    node = node.setdefault(part, {})
                node[leaf] = value
        self.choices = config["choices"]
        config["study"] = {"name": study, "arm": name}
        self.config = yaml.dump(config, sort_keys=False)
        git = made.commit and {"commit": made.commit, "dirty": made.dirty}
        self.provenance = json.dumps(
            {
                "git": git,
                "source": made.source,
                "packages": PACKAGES,
                "python": "3.11.2",
                "platform": "Linux",
                "host": made.host,
                "cpu_threads": 1,
                "gpus": [],
                "data_fingerprint": made.fingerprint,
                "arguments": [],
            },
            indent=2,
        )

    def result(self, cell: Mapping[str, Any], value: Value) -> str:
        made, status, error = self.made, "finished", None
        if isinstance(value, str):
            status, _, error = value.partition(": ")
        metrics = _metrics(self.metric, value)
        content: dict[str, Any] = {
            "status": status,
            "error": error or None,
            "study": self.study,
            "arm": self.name,
            "seed": cell["seed"],
            "run_id": cell["run_id"],
            "metric": {"name": self.metric, "value": metrics.get(self.metric), "mode": self.mode},
            "metrics": metrics,
            "parameters": {
                "total": made.parameters,
                "trainable": made.parameters,
                "non_embedding": made.parameters,
            },
            "flops_per_step": made.flops,
            "kernels": {"stack.blocks.0.attention.function": "sdpa"},
            "choices": self.choices,
        }
        if status == "finished":
            seconds = made.seconds * (1 + 0.02 * math.sin(cell["seed"]))
            content |= {
                "steps": made.steps,
                "best_step": made.steps,
                "train_seconds": seconds,
                "throughput": {"unit": "tokens/s", "value": made.steps * made.tokens / seconds},
            }
        if status != "running":
            content |= {"wall_seconds": made.seconds + 2, "peak_memory_bytes": 3 * 10**8}
            content["logged_to"] = None
        return json.dumps(content, indent=2)

    def curve(self, value: Value) -> str:
        """Training loss and the validation metric; it falls or climbs to its value, or stops."""
        validations, between = self.points
        final = _metrics(self.metric, value).get(self.metric)
        last = validations if final is not None else validations // 2
        final = 1.6 if final is None else final
        start = final + (1.5 if self.mode == "min" else -0.6 * abs(final))
        curve = "val/" + self.metric.split("/", 1)[1]
        lines = [f"step,train/loss,{curve}"]
        for n in range(1, last * between + 1):
            done = n / (validations * between)
            now = final + (start - final) * (math.exp(-5 * done) - math.exp(-5)) / (
                1 - math.exp(-5)
            )
            shown = f"{now}" if n % between == 0 else ""
            lines.append(f"{round(self.made.steps * done)},{now * 0.97},{shown}")
        return "\n".join(lines) + "\n"


def _metrics(metric: str, value: Value) -> dict[str, float]:
    if isinstance(value, Mapping):
        return dict(value)
    if value is None or isinstance(value, str):
        return {}
    if metric == "val/loss":
        return {metric: value, "val/perplexity": math.exp(min(value, 50.0))}
    return {metric: value, "val/loss": 1.0 - value / 2}


def write_run(folder: Path, cell: Mapping[str, Any], texts: Texts, value: Value) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text(f"seed: {cell['seed']}\n{texts.config}")
    (folder / "provenance.json").write_text(texts.provenance)
    (folder / "result.json").write_text(texts.result(cell, value))
    (folder / "metrics.csv").write_text(texts.curve(value))
