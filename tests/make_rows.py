"""A row of choices, composed, refused or trained for two steps."""

import math
import os
import pickle
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import lightning.pytorch as L
import torch
import yaml
from lightning.pytorch.callbacks import Callback
from make_axes import EVERY_AXIS, GROUPS, MODELS
from make_files import FILES
from make_model import KERNEL_NEEDS
from make_systems import rows_of_systems
from omegaconf import DictConfig, OmegaConf

from ablate.config.check import check
from ablate.config.composition import Composition, compose
from ablate.config.make import make_data
from ablate.config.overrides import value_text
from ablate.config.tree import config_file, open_tree
from ablate.data import Data
from ablate.data.mixture import Mixture
from ablate.data.tokens import Tokens
from ablate.errors import UserError
from ablate.model.base import Model
from ablate.training.build import build, build_data, make_task
from ablate.training.measure import full_pass
from ablate.training.preflight import check_devices
from ablate.training.train import prepare

STEPS = 2
SMALL: dict[str, dict[str, Any]] = {
    "model.embedding": {"epochs": 1},
    "model.mask": {"size": 3},
    "model.window": {"size": 2},
    "optimizer": {"lr": 0.01},  # a step that no rounding to 8 bits hides
    "schedule": {"warmup": 1},
    "trainer": {
        "max_steps": STEPS,
        "max_epochs": None,
        "val_check_interval": 1,
        "check_val_every_n_epoch": None,
        "log_every_n_steps": 1,
    },
}
# Two processes: test_ddp.py.
ONE_PROCESS = {"accelerator": "cpu", "devices": 1}


@cache
def base(model: str) -> DictConfig:
    """The model's own defaults, tiny."""
    return compose(*base_overrides(model))


@cache
def pickled(model: str) -> bytes:
    return pickle.dumps(base(model))


def base_overrides(model: str, data: str | None = None) -> list[str]:
    """data: instead of the model's default."""
    tiny = MODELS[model]
    small = {"data": FILES.get(data or tiny.data, {})} | {
        g: SMALL[g] for g in ("schedule", "trainer")
    }
    return [
        *(f"model={model}", *([f"data={data}"] if data else []), *tiny.overrides, "logger=none"),
        *(f"{group}.{k}={written(v)}" for group in small for k, v in small[group].items()),
    ]


def written(value: Any) -> str:
    """As on the command line."""
    return value_text(value) if isinstance(value, dict) else "null" if value is None else str(value)


@cache
def option(group: str, name: str) -> DictConfig:
    """The node that a choice makes, small."""
    node = OmegaConf.load(config_file(f"{group}/{name}.yaml"))
    if "defaults" in node:
        tree = open_tree()
        node = OmegaConf.select(tree.load([f"{group}={name}"]), group)
    assert isinstance(node, DictConfig)
    OmegaConf.set_struct(node, False)
    for key, value in changes(group, name).items():
        if key in list(node):  # `in` says no where a value is missing
            node[key] = value
    return node


def changes(group: str, name: str) -> dict[str, Any]:
    """What makes an option small, and data at home here."""
    if group == "data":
        return FILES.get(name, {})
    return SMALL.get(group, {}) | (ONE_PROCESS if name == "ddp" else {})


@cache
def axes_of(model: str) -> dict[str, list[Any]]:
    """The axes that a model has."""
    tiny = MODELS[model]
    return {
        axis: tiny.own.get(axis, choices)
        for axis, choices in EVERY_AXIS.items()
        if axis in tiny.sometimes or axis in base(model).choices or has_value(base(model), axis)
    }


def has_value(cfg: DictConfig, path: str) -> bool:
    """transformer's model.decoder, for one, is a node."""
    return holds(cfg, path) and not OmegaConf.is_dict(OmegaConf.select(cfg, path))


def holds(cfg: DictConfig, path: str) -> bool:
    node, _, leaf = path.rpartition(".")
    parent = OmegaConf.select(cfg, node) if node else cfg
    return OmegaConf.is_dict(parent) and leaf in [*parent]  # also if it is ???


def composed(model: str, row: dict[str, Any]) -> DictConfig:
    """The base with the row's choices: what Hydra composes from the same overrides."""
    cfg = pickle.loads(pickled(model))  # a fourth of the time of copy.deepcopy
    OmegaConf.set_struct(cfg, False)
    for axis in sorted(row, key=lambda axis: axis not in GROUPS):
        if axis not in GROUPS:
            OmegaConf.update(cfg, axis, row[axis])
            continue
        cfg.choices[axis] = row[axis]
        if part := option(axis, row[axis]):
            OmegaConf.update(cfg, axis, part, merge=False)
        elif holds(cfg, axis):
            node, _, leaf = axis.rpartition(".")
            del OmegaConf.select(cfg, node)[leaf]
    OmegaConf.set_struct(cfg, True)
    return cfg


def refusal(model: str, row: dict[str, Any]) -> str | None:
    """What the command line says to the row; None if it is accepted."""
    for axis in row:
        owner = axis.split(".")[0]
        chosen = option(owner, row[owner]) if owner in row else base(model)[owner]
        if axis not in GROUPS and not holds(chosen, axis.removeprefix(f"{owner}.")):
            choice = row.get(owner, base(model).choices[owner])
            return no_such_key(model, f"{owner}={choice}", axis)
    try:
        cfg = composed(model, row)
        check(cfg)
        check_devices(Composition(cfg).cfg)
        if any(axis.startswith("data.") for axis in row):
            data = make_data(cfg)  # which checks them together
            for part in data.parts.values() if isinstance(data, Mixture) else [data]:
                if isinstance(part, Tokens):
                    _ = part.stored  # whose tokenizer is another
    except UserError as error:
        return str(error)
    return None


# What an option cannot be composed without, beside a model that has it.
NEEDS = {
    "data=recall": ["task=recall"],
    "data=text_files": ["task=classification"],
    "task=recall": ["data=recall"],
    **rows_of_systems("NEEDS"),
    "model.embedding=onehot": ["model.tie_embeddings=false", "model.dim=256"],
    "optimizer=modded_adamw": ["model.tie_embeddings=false"],
    "optimizer=modded_muon": ["model.tie_embeddings=false"],
    "optimizer=schedule_free": ["schedule=constant"],
    "logger=lightning": ["logger.instance={_target_: lightning.pytorch.loggers.CSVLogger}"],
    **{f"kernel={name}": needs for name, needs in KERNEL_NEEDS.items()},
}


@cache
def taker(choice: str) -> tuple[str, dict[str, Any]]:
    """The first model that has an option, and the row with the option and what it needs."""
    group, _, name = choice.partition("=")
    row = {key: yaml.safe_load(it) for key, it in (n.split("=", 1) for n in NEEDS.get(choice, []))}
    model = row.pop("model", name if group == "model" else "gpt")
    if group in GROUPS:
        row[group] = name
    if group.startswith(("data", "task", "model.", "pos_enc")):
        model = next(m for m in MODELS if group in axes_of(m) and refusal(m, row) is None)
    return model, row


def needs(choice: str) -> list[str]:
    """The first model that has an option, unless that is gpt, and what else the option needs."""
    model = taker(choice)[0]
    beside = [text for text in NEEDS.get(choice, []) if not text.startswith("model=")]
    return beside if choice.startswith("model=") or model == "gpt" else [f"model={model}", *beside]


def inputs(cfg: DictConfig, data: Data, network: Model) -> tuple[torch.Tensor, ...]:
    """What a model reads of the first training batch."""
    task: Any = make_task(cfg, data, network)
    read: tuple[torch.Tensor, ...] = task.inputs(task.prepared(next(iter(data.train_dataloader()))))
    return read


@cache
def no_such_key(model: str, choice: str, axis: str) -> str:
    try:
        compose(f"model={model}", choice, f"{axis}={written(EVERY_AXIS[axis][0])}")
    except UserError as error:
        return str(error)
    raise AssertionError(f"{choice} has no {axis}")


class Gradients(Callback):
    """Looks whether every parameter has one, and whether it is finite."""

    def on_before_optimizer_step(
        self, trainer: L.Trainer, pl_module: L.LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        for name, parameter in pl_module.named_parameters():
            if not parameter.requires_grad:  # model.freeze
                continue
            assert parameter.grad is not None, name
            assert parameter.grad.isfinite().all(), name


def train(model: str, row: dict[str, Any]) -> None:
    """Two steps of the composition, as a run makes them, with a validation after each."""
    cfg = composed(model, row)
    data = build_data(cfg)
    network = build(cfg, data)
    before = [parameter.detach().clone() for parameter in network.parameters()]
    # Lightning leaves variables of a process group behind.
    with TemporaryDirectory() as folder, mock.patch.dict(os.environ):
        (Path(folder) / "checkpoints").mkdir()
        trainer, task, curves, _ = prepare(cfg, Path(folder), data, network)
        trainer.callbacks.append(Gradients())  # type: ignore[attr-defined]
        try:
            trainer.fit(task, datamodule=data)
            if hasattr(task, "fitting"):  # it measures more after training: what the model writes
                metrics = full_pass(trainer, task, data)
                assert all(math.isfinite(value) for value in metrics.values()), metrics
        finally:  # a test that forks would wait for its other processes for ever
            if torch.distributed.is_initialized():
                torch.distributed.destroy_process_group()
    assert [point["step"] for point in curves.rows] == list(range(1, STEPS + 1))
    for point in curves.rows:
        assert {"train/loss", task.metric} <= point.keys()
        assert all(math.isfinite(value) for value in point.values()), point
    moved = False
    for parameter, old in zip(network.parameters(), before, strict=True):
        assert parameter.isfinite().all()
        moved |= not torch.equal(parameter, old.to(parameter.dtype))
    # A step of sgd may be less than half of the last of 8 bits.
    assert moved or cfg.trainer.precision == "bf16-true"
