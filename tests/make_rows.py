"""The axes of a composition, and a row of choices composed and trained for two steps."""

import copy
import math
import os
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import lightning.pytorch as L
import torch
from lightning.pytorch.callbacks import Callback
from make_files import FILES
from make_model import options
from omegaconf import DictConfig, OmegaConf

from ablate.build import build, build_data
from ablate.check import check, check_devices
from ablate.compose import compose
from ablate.errors import UserError
from ablate.train import prepare
from ablate.tree import open_tree

# Every config group but `model`, which is the outer loop, and those that train nothing.
GROUPS = (
    "data",
    "task",
    "model.attention",
    "pos_enc",
    "model.mask",
    "kernel",
    "optimizer",
    "schedule",
    "trainer",
)
AXES: dict[str, list[Any]] = {group: options(group) for group in GROUPS} | {
    "model.dim": [12, 8],
    "model.heads": [2, 1, 3],
    "model.depth": [2, 1],
    "model.norm": ["pre", "post", "sandwich", "none"],
    "model.norm_type": ["layer", "rms", "batch"],
    "model.residual": [True, False],
    "model.ffn": ["gelu", "relu", "swiglu", "geglu", "none"],
    "model.ffn_dim": [None, 5],
    "model.share_layers": [False, True],
    "model.tie_embeddings": [True, False],
    "model.bias": [True, False],
    "model.patch": [4, 2],
    "model.stride": [None, 2],
    "model.pool": ["mean", "class"],
    "model.drop_path": [0.0, 0.1],
    "model.dropout": [0.0, 0.1],
    "task.label_smoothing": [0.0, 0.1],
    "trainer.precision": ["32-true", "bf16-mixed", "bf16-true", "64-true", "16-mixed", "16-true"],
    "trainer.accumulate_grad_batches": [1, 2],
    "trainer.gradient_clip_val": [1.0, None],
}
# Axes that only some data or tasks have, and only for these models.
TEXTS: dict[str, list[Any]] = {"data.tokenizer": ["char", "byte", "bpe", "word"]}
PICTURES: dict[str, list[Any]] = {
    "data.flip": [False, True],
    "task.mixup": [0.0, 0.2],
    "task.cutmix": [0.0, 1.0],
}
EVERY_AXIS = AXES | TEXTS | PICTURES
MODELS = {
    "gpt": ("model.dim=12", "model.heads=2", "model.depth=2"),
    "vit": ("model.dim=12", "model.heads=2", "model.depth=2", "model.patch=4", "model.pool=mean"),
    # oneDNN's bfloat16 convolutions of 3 x 3 on one pixel, the size that most of timm's test models
    # make of a digit, sometimes have gradients that are not finite; this one has none of them.
    "timm": ("model.name=test_efficientnet",),
}
STEPS = 2
SMALL: dict[str, dict[str, Any]] = {
    "model.mask": {"size": 3},
    "schedule": {"warmup_steps": 1},
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


def base_overrides(model: str) -> list[str]:
    data = "pydoc" if model == "gpt" else "digits"
    small = {"data": FILES[data], "schedule": SMALL["schedule"], "trainer": SMALL["trainer"]}
    return [
        f"model={model}",
        *MODELS[model],
        "logger=none",
        *(f"{group}.{k}={_written(v)}" for group in small for k, v in small[group].items()),
    ]


def _written(value: Any) -> str:
    return "null" if value is None else str(value)


@cache
def option(group: str, name: str) -> DictConfig:
    """The node that a choice makes, small."""
    with open_tree() as tree:
        node = OmegaConf.select(tree.load([f"{group}={name}"]), group)
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


def axes_of(model: str) -> dict[str, list[Any]]:
    """The axes that a model has."""
    sometimes = TEXTS if model == "gpt" else PICTURES
    return {
        axis: choices
        for axis, choices in EVERY_AXIS.items()
        if axis in sometimes or holds(base(model), axis)
    }


def holds(cfg: DictConfig, path: str) -> bool:
    node, _, leaf = path.rpartition(".")
    return leaf in (OmegaConf.select(cfg, node) if node else cfg)


def composed(model: str, row: dict[str, Any]) -> DictConfig:
    """The base with the row's choices: what Hydra composes from the same overrides."""
    cfg = copy.deepcopy(base(model))
    OmegaConf.set_struct(cfg, False)
    for axis in sorted(row, key=lambda axis: axis not in GROUPS):
        if axis in GROUPS:
            OmegaConf.update(cfg, axis, option(axis, row[axis]), merge=False)
            cfg.choices[axis] = row[axis]
        else:
            OmegaConf.update(cfg, axis, row[axis])
    OmegaConf.set_struct(cfg, True)
    return cfg


def refusal(model: str, row: dict[str, Any]) -> str | None:
    """What the command line says to the row; None if it is accepted."""
    chosen = composed(model, {axis: row[axis] for axis in GROUPS if axis in row})
    for axis in row:
        if not holds(chosen, axis):
            owner = axis.split(".")[0]
            return no_such_key(model, f"{owner}={chosen.choices[owner]}", f"{axis}={row[axis]}")
    try:
        cfg = composed(model, row)
        check(cfg)
        check_devices(cfg)
    except UserError as error:
        return str(error)
    return None


@cache
def no_such_key(model: str, choice: str, override: str) -> str:
    try:
        compose(f"model={model}", choice, override)
    except UserError as error:
        return str(error)
    raise AssertionError(f"{choice} has no key of {override}")


class Gradients(Callback):
    """Looks whether every parameter has one, and whether it is finite."""

    def on_before_optimizer_step(
        self, trainer: L.Trainer, pl_module: L.LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        for name, parameter in pl_module.named_parameters():
            assert parameter.grad is not None, name
            assert parameter.grad.isfinite().all(), name


def train(model: str, row: dict[str, Any]) -> None:
    """Two steps of the composition, as `ablate.train` makes them, with a validation after each."""
    cfg = composed(model, row)
    data = build_data(cfg)
    network = build(cfg, data)
    before = [parameter.detach().clone() for parameter in network.parameters()]
    # Lightning leaves variables of a process group behind.
    with TemporaryDirectory() as folder, mock.patch.dict(os.environ):
        (Path(folder) / "checkpoints").mkdir()
        trainer, task, curves, _ = prepare(cfg, Path(folder), data, network)
        trainer.callbacks.append(Gradients())  # type: ignore[attr-defined]
        trainer.fit(task, datamodule=data)
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
    assert [point["step"] for point in curves.rows] == list(range(1, STEPS + 1))
    for point in curves.rows:
        assert {"train/loss", "val/loss"} <= point.keys()
        assert all(math.isfinite(value) for value in point.values()), point
    moved = False
    for parameter, old in zip(network.parameters(), before, strict=True):
        assert parameter.isfinite().all()
        moved |= not torch.equal(parameter, old.to(parameter.dtype))
    assert moved
