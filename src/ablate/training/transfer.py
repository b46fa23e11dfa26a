"""init_from=RUN_DIR: start a run from another run's best weights.

Parameters are matched by name. Those of output heads (`Model.heads`) that do not match are newly
initialized, or not loaded; every other one must exist in both models with the same shape. The
models must also be made of the same parts, since parts can differ without any difference in their
parameters. For text data, the tokens are those of the other run.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig

from ablate.config.keys import flatten, targets, to_dict
from ablate.config.overrides import value_text
from ablate.config.parts import OURS, Unreadable, class_attribute
from ablate.config.saved import read_config
from ablate.config.view import LABELED, PAIRS, TEXT
from ablate.errors import UserError, few
from ablate.run_files import LAST, best_weights, require_run
from ablate.run_files.records import read_result, require_weights

if TYPE_CHECKING:
    from torch import Tensor

    from ablate.model.base import Model

# Keys that may differ between a run and the run it starts from: how it is trained, and keys of the
# output map. An allow-list, so that keys added later must be equal.
FREE = {
    "model.activation_checkpointing",
    "model.dropout",
    "model.drop_path",
    "model.freeze",
    "model.init_depth_scale",
    "model.init_std",
    "model.pretrained",
    "model.tie_embeddings",
}
WITH_TOKENS = {TEXT, LABELED, PAIRS}  # kinds of data
TOKEN_KEYS = {f"data.{key}" for key in ("tokenizer", "vocab_size", "joint", "lower", "min_count")}


@dataclass
class StartingRun:
    """A run to start from. init_from: its folder, as typed. allow: the custom components that its
    config may name: those of the new run. goes_on: with init_optimizer, from the last state of
    training, not from the best weights."""

    init_from: str
    allow: frozenset[str] = frozenset()
    goes_on: bool = False

    @classmethod
    def of(cls, cfg: DictConfig) -> StartingRun:
        return cls(cfg.init_from, frozenset(targets(cfg).values()), cfg.init_optimizer)

    @property
    def folder(self) -> Path:
        folder = Path(self.init_from).expanduser()
        require_run(folder, f"init_from={self.init_from}")
        require_weights(folder, f"init_from={self.init_from}")
        return folder

    @property
    def config(self) -> DictConfig:
        return read_config(self.folder / "config.yaml", self.allow)

    @property
    def state(self) -> Path:
        path = self.folder / "checkpoints" / LAST
        if not path.is_file():
            raise UserError(
                f"init_optimizer=true: {path} is missing; checkpoint_keep=all keeps it, as does"
                " checkpoint_keep=last"
            )
        return path

    def read(self) -> dict[str, Tensor]:
        """The weights to start from."""
        from ablate.run_files.checkpoint_io import read_state, read_weights

        if not self.goes_on:
            return read_weights(best_weights(self.folder))
        weights: dict[str, Tensor] = read_state(self.state)["state_dict"]
        return weights

    def require_same_parts(self, cfg: DictConfig) -> None:
        """Raise UserError that lists the keys that differ, with both values."""
        source_parts, parts = parts_of(self.config), parts_of(cfg)
        if self.goes_on:  # with the state of the same optimizer
            _ = self.state
            source_parts |= optimizers_of(self.config)
            parts |= optimizers_of(cfg)
        # Leave out the keys of a part that is another class, and keys that only one data set has.
        other = tuple(f"{part}." for part in source_parts if source_parts[part] != parts.get(part))
        free = FREE | set(may_differ(cfg))
        differing = [
            key
            for key in sorted((source_parts.keys() | parts.keys()) - free)
            if source_parts.get(key) != parts.get(key)
            and not key.startswith(other)
            and not (key in TOKEN_KEYS and (key not in source_parts or key not in parts))
        ]
        if differing:
            lines = [
                f"{key} is {_value(source_parts, key)} there and {_value(parts, key)} here"
                for key in differing
            ]
            raise UserError(
                f"init_from={self.init_from} has a different architecture: {few(lines, '; ')}"
            )


def may_differ(cfg: DictConfig) -> tuple[str, ...]:
    """The keys that the task lets differ (`may_differ` of its class)."""
    try:
        keys: tuple[str, ...] = class_attribute(cfg.task._target_, "may_differ")
    except Unreadable:  # a custom task that is not a `Task`
        return ()
    return keys


def check_start(cfg: DictConfig) -> None:
    """Raise UserError if init_from is not a run, or a run with other parts."""
    if cfg.init_from is not None:
        StartingRun.of(cfg).require_same_parts(cfg)


def parts_of(cfg: DictConfig) -> dict[str, Any]:
    """Return every key of the model, its positions and its tokens with its value; built-in
    components by the name of their option.
    """
    parts = {key: cfg.data[leaf] for key in TOKEN_KEYS if (leaf := key[5:]) in cfg.data}
    for node in ("model", "pos_enc"):
        for path, value in flatten(to_dict(cfg[node]), node).items():
            ours = path.endswith("._target_") and str(value).startswith(OURS)
            key = path.removesuffix("._target_")
            if not key.endswith("._partial_"):
                parts[key] = value.split(".")[-2] if ours else value
    return parts


def optimizers_of(cfg: DictConfig) -> dict[str, Any]:
    """The optimizer's class, and those of its rules, by key."""
    return {f"{path}._target_": name for path, name in targets(cfg.optimizer, "optimizer").items()}


def _value(parts: dict[str, Any], key: str) -> str:
    return value_text(parts[key]) if key in parts else "not set"


def start_from(model: Model, cfg: DictConfig) -> None:
    """Load the weights of cfg.init_from into the model; record it in `model.started_from`."""
    source = StartingRun.of(cfg)
    source.require_same_parts(cfg)
    state = source.read()
    weights = {
        name.removeprefix("model."): value
        for name, value in state.items()
        if name.startswith("model.")
    }
    run_id = read_result(source.folder)[0].get("run_id")
    what = f"init_from={source.init_from}"
    load_into(model, weights, what, run=str(source.folder.absolute()), run_id=run_id)


def load_into(
    model: Model, weights: dict[str, Tensor], what: str, *, run: str, run_id: str | None = None
) -> None:
    """Load the tensors that fit; record it in `model.started_from`. Raises UserError (`fitting`).

    run, run_id: their source.
    """
    state = model.state_dict()
    loaded = fitting(state, weights, model.heads, what)
    model.load_state_dict(loaded, strict=False)
    model.started_from = {
        "run": run,
        "run_id": run_id,
        "loaded": sorted(loaded),
        "new": sorted(state.keys() - loaded.keys()),
        "left": sorted(weights.keys() - loaded.keys()),
    }


def fitting(
    target: dict[str, Tensor], source: dict[str, Tensor], heads: tuple[str, ...], what: str
) -> dict[str, Tensor]:
    """Return the tensors of `source` to load into `target`; raise UserError that lists the
    mismatches. Only parameters of output maps, whose names start with one of `heads`, may be
    missing, unknown or of another shape. what: begins the error."""
    target_state, source_state = (
        {name: value for name, value in state.items() if not name.startswith(heads)}
        for state in (target, source)
    )
    wrong = {
        "missing": [name for name in target_state if name not in source_state],
        "unknown": [name for name in source_state if name not in target_state],
        "shapes": [
            f"{name} is {_shape(source_state[name])} there and {_shape(target_state[name])} here"
            for name in source_state
            if name in target_state and source_state[name].shape != target_state[name].shape
        ],
    }
    if lines := [f"{kind}: {few(names, ', ')}" for kind, names in wrong.items() if names]:
        raise UserError(f"{what} does not fit this model: {'; '.join(lines)}")
    return {
        name: value
        for name, value in source.items()
        if name in target and value.shape == target[name].shape
    }


def describe_transfer(started_from: dict[str, Any]) -> str:
    """Describe in one line the loaded, the new and the unused parameters."""
    counted = f"{len(started_from['loaded'])} tensors from {started_from['run']}"
    rest = (f"{what}: {few(started_from[what], ', ') or 'none'}" for what in ("new", "left"))
    return f"{counted}; {'; '.join(rest)}"


def _shape(tensor: Tensor) -> str:
    return " x ".join(map(str, tensor.shape)) or "one number"
