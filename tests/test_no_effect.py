"""Nothing is accepted and ignored: a key of the model that changes nothing is refused by name."""

import itertools
from collections.abc import Iterator
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from make_axes import GROUPS, MODELS
from make_rows import axes_of, base, composed, refusal
from omegaconf import DictConfig, OmegaConf
from tiny import overrides
from torch import Tensor

import ablate
from ablate.config.composition import Composition
from ablate.data import Data
from ablate.errors import UserError
from ablate.model.base import outputs
from ablate.task.accumulation import added_losses
from ablate.training import no_effect
from ablate.training.build import build, build_data, make_task
from ablate.training.no_effect import left_out, refuse_without_effect

pytestmark = pytest.mark.usefixtures("small_files")
WITH_COUNTS = True  # tests/conftest.py
IGNORED = [
    ("model.norm=none model.norm_eps=0.1", "model.norm_eps=0.1 has no effect"),
    ("model.mask=window model.mask.size=16", "model.mask=window has no effect on this model"),
    ("model.depth=2 model.layers.dropout=[0.1,0.2] model.heads=1 model.layers.heads=[4,8]",
     "model.heads=1 has no effect"),
    ("optimizer=modded_muon optimizer.head.lr=0.5",
     "optimizer.head.lr=0.5 has no effect: no parameter of this model has the role head"),
]  # fmt: skip


@pytest.mark.ci
@pytest.mark.parametrize(("given", "line"), IGNORED)
def test_a_key_that_changes_nothing_is_refused(tmp_path: Path, given: str, line: str) -> None:
    given = f"model.dim=32 {given}" if "layers" in given else given
    cfg = ablate.compose(*overrides(tmp_path, *given.split()))
    with pytest.raises(UserError, match=line) as error:
        refuse_without_effect(Composition(cfg), build_data(cfg))
    assert "model.dim" not in str(error.value)


@pytest.mark.ci
@pytest.mark.parametrize(
    "given",
    [
        "model.ffn=moe model.ffn.balance=0.5",  # a loss of the layers
        "model.normalizer=hard model.normalizer.temperature=2.0",  # the gradient alone
        "model.depth=2 model.kv_heads=1 model.layers.mixer=[none,attention]",
        "optimizer=modded_muon optimizer.head.lr=0.5 model.tie_embeddings=false",
    ],
)
def test_what_acts_in_training_alone_is_accepted(tmp_path: Path, given: str) -> None:
    cfg = ablate.compose(*overrides(tmp_path, *given.split()))
    refuse_without_effect(Composition(cfg), build_data(cfg))


@pytest.mark.ci
@pytest.mark.parametrize("longest", [16, 60])
def test_a_window_that_the_longest_text_alone_leaves_acts(tmp_path: Path, longest: int) -> None:
    for split, name in itertools.product(("train", "val", "test"), "ab"):
        (tmp_path / split / name).mkdir(parents=True)
        for n in range(12):
            length = longest if (split, name, n) == ("train", "b", 7) else 6
            (tmp_path / split / name / f"{n}.txt").write_text(f"{n:02}{name * (length - 2)}")
    cfg = ablate.compose(
        *f"data=text_files data.root={tmp_path} data.tokenizer=char data.seq_len=64".split(),
        *("task=classification", "data.batch_size=2", "logger=none", "pos_enc=none"),
        *("model.dim=16", "model.depth=1", "model.heads=2"),
        *("model.mask=window", "model.mask.size=16"),
    )
    with nullcontext() if longest > 16 else pytest.raises(UserError, match="window has no effect"):
        refuse_without_effect(Composition(cfg), build_data(cfg))


def test_a_run_is_refused_before_it_starts_and_an_arm_of_a_study_is_not(tmp_path: Path) -> None:
    given = ["model.mixer=none", "model.heads=1", "trainer.max_steps=1", "schedule.warmup=0"]
    cfg = ablate.compose(*overrides(tmp_path, *given))
    with pytest.raises(UserError, match=r"model\.heads=1 has no effect"):
        ablate.run(cfg)
    assert not list(tmp_path.rglob("result.json"))
    cfg.study.arm = "heads"
    refuse_without_effect(Composition(cfg), build_data(cfg))


@pytest.mark.ci
def test_what_acts_is_compared_once_and_what_does_not_is_refused_again(tmp_path: Path) -> None:
    def compared(*more: str) -> int:
        cfg = ablate.compose(*overrides(tmp_path, *more))
        with mock.patch.object(no_effect, "model_on_meta", wraps=no_effect.model_on_meta) as made:
            refuse_without_effect(Composition(cfg), build_data(cfg))
        return made.call_count

    no_effect.ACTS.clear()
    first, *others = [(), ("seed=1",), ("optimizer.lr=0.1",), ("model.dropout=0.2",)]
    every = compared(*first)
    assert every > 1
    assert [compared(*more) for more in others] == [0, 0, every]
    for _ in range(2):
        with pytest.raises(UserError, match=r"norm_eps=0\.1 has no effect"):
            compared("model.norm=none", "model.norm_eps=0.1")


Row = dict[str, Any]


def rows(model: str) -> Iterator[tuple[str, Row]]:
    """Every key of the model with another value, alone and beside every option of its groups;
    also what is refused."""
    axes = {name: axis for name, axis in axes_of(model).items() if name.startswith("model.")}
    keys = {k: v for k, v in axes.items() if k not in GROUPS and not left_out(k)}
    groups = [axis for axis in [*axes, "pos_enc"] if axis in GROUPS and axis in axes_of(model)]
    beside = [{}, *({group: option} for group in groups for option in axes_of(model)[group])]
    for key, values in keys.items():
        other = next(v for v in values if v != OmegaConf.select(base(model), key))
        for row in beside:
            yield key, row | {key: other}


@cache
def data_of(model: str) -> Data:
    return build_data(base(model))


def after_two_steps(model: str, row: Row) -> list[Tensor]:
    """The parameters after two steps of gradient descent, and the outputs in evaluation; away from
    the initial values, at which additive scores are so small that a cap of 2 changes no bit."""
    cfg = composed(model, row)
    data = data_of(model)
    network = build(cfg, data)
    task = make_task(cfg, data, network)
    inputs = task.inputs(task.prepared(next(iter(data.train_dataloader()))))
    parameters = [p for p in network.parameters() if p.requires_grad]
    torch.manual_seed(2)
    for parameter in parameters:
        parameter.data.add_(0.5 * torch.randn_like(parameter))
    for step in range(2):
        torch.manual_seed(step)
        loss = sum(part.square().mean() for part in outputs(network.train()(*inputs)))
        loss += sum(added_losses(network).values())
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            if gradient is not None:
                parameter.data.sub_(gradient / gradient.norm().clamp(min=1))
    with torch.no_grad():
        found = [*network.parameters(), *outputs(network.eval()(*inputs))]
    assert all(tensor.isfinite().all() for tensor in found)  # nan would equal nothing
    return found


@cache
def without(model: str, *row: tuple[str, Any]) -> list[Tensor]:
    return after_two_steps(model, dict(row))


def acts(model: str, key: str, row: Row) -> bool:
    """Whether the key changes what the model computes or learns."""
    default = without(model, *((k, v) for k, v in row.items() if k != key))
    there = after_two_steps(model, row)
    return len(default) != len(there) or not all(map(torch.equal, default, there))


def refused(model: str, key: str, row: Row) -> bool:
    """Whether the key is refused; the others of a tiny model are not asked about."""
    theirs = no_effect._with_defaults

    def only_the_key(composition: Composition) -> Iterator[tuple[str, str, DictConfig]]:
        return (found for found in theirs(composition) if found[0].startswith(f"{key}="))

    with mock.patch.object(no_effect, "_with_defaults", only_the_key):
        try:
            refuse_without_effect(Composition(composed(model, row)), data_of(model))
        except UserError as error:
            return f"{key}=" in str(error)
    return False


@pytest.mark.parametrize(
    ("model", "every"),
    [
        pytest.param("vit", 131, marks=pytest.mark.ci),
        pytest.param("gpt", 127, marks=pytest.mark.ci),
        *(pytest.param(model, 1, marks=pytest.mark.slow) for model in MODELS),
    ],
)
def test_a_key_beside_any_option_acts_or_is_refused(model: str, every: int) -> None:
    for key, row in [*rows(model)][::every]:
        if not any(refusal(model, r) for r in (row, {k: v for k, v in row.items() if k != key})):
            assert refused(model, key, row) != acts(model, key, row), row
