"""What the tests of the knobs share: the keys of a composition, another value for each of them, and
what a run ends with."""

import os
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple
from unittest import mock

import torch
from make_axes import EVERY_AXIS
from make_rows import base_overrides
from make_systems import rows_of_systems
from omegaconf import DictConfig
from torch import Tensor

from ablate.config.composition import compose
from ablate.config.rules import Rule, names_of
from ablate.config.schema import ruled
from ablate.training.build import build, build_data
from ablate.training.train import prepare

MEANINGLESS = ("_target_", "_partial_")
DATA = {"gpt": "text", "bert": "text", "rnn_seq2seq": "copy"}  # read faster than their defaults
OWN = {
    "gpt": ["data.val_fraction=0.002"],
    "bert": [
        "data.val_fraction=0.002",
        "task.mask_share=0.2",
    ],  # few are masked, so that others are replaced
    "vit": ["model.patch=4", "model.dropout=0"],
    "rnn_seq2seq": ["model.depth=1"],
    **rows_of_systems("KNOBS_BESIDE"),
}


class Run(NamedTuple):
    """What four steps with two validations leave behind."""

    parameters: dict[str, Tensor]
    rows: list[dict[str, float]]  # of metrics.csv
    units: int  # tokens or images
    previous: int  # the step of previous.ckpt
    deterministic: bool  # whether torch was


def keys_of(cfg: DictConfig, node: str) -> set[str]:
    """Every key of a node that holds a value a person would choose."""
    found = {path for path, *_ in ruled(cfg) if path.startswith(f"{node}.")}
    return {path for path in found if not path.endswith(MEANINGLESS)}


def other(key: str, now: Any, rule: Rule | None) -> Any:
    """Another value of a key: of its axis, or one that its rule allows."""
    assert rule is not None, key
    if isinstance(now, list):
        return [0.5] * len(now)
    values = (*EVERY_AXIS.get(key, ()), 0.5, 3, 2, True, False, *names_of(rule))
    return next(value for value in values if value != now and rule.allows(value))


def equal(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return first.keys() == second.keys() and all(
        value.dtype == second[name].dtype and torch.equal(value, second[name])
        for name, value in first.items()
    )


def overrides(model: str) -> list[str]:
    """A tiny run on the files of make_files.py."""
    steps = ["trainer.max_steps=4", "trainer.val_check_interval=2"]
    return [*base_overrides(model, DATA.get(model)), *OWN.get(model, []), *steps]


@cache
def trained(model: str, *more: str) -> Run:
    """Trains as `ablate.training.train` does."""
    cfg = compose(*overrides(model), *more)
    data = build_data(cfg)
    network = build(cfg, data)
    with TemporaryDirectory() as name, mock.patch.dict(os.environ):
        checkpoints = Path(name) / "checkpoints"
        checkpoints.mkdir()
        trainer, task, curves, _ = prepare(cfg, Path(name), data, network)
        try:
            trainer.fit(task, datamodule=data)
            deterministic = torch.are_deterministic_algorithms_enabled()
        finally:
            torch.use_deterministic_algorithms(False)
        previous = torch.load(checkpoints / "previous.ckpt", weights_only=True)["global_step"]
    parameters = {name: p.detach().clone() for name, p in network.named_parameters()}
    assert all(value.isfinite().all() for value in parameters.values())  # nan would equal nothing
    return Run(parameters, curves.rows, curves.units, previous, deterministic)
