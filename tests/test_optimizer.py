"""Roles of parameters, and optimizers that have a rule for each."""

import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import DictConfig
from test_resume import assert_equal, at_step, strike
from tiny import images, overrides

import ablate
from ablate.config.composition import Composition
from ablate.errors import UserError
from ablate.model.base import ROLES
from ablate.training.build import build, build_data, make_task

MIXED = """
_target_: ablate.optimizer.ByRole
_partial_: true
matrix: {_target_: torch.optim.SGD, _partial_: true, lr: 0.1, momentum: 0.9, weight_decay: 0.1}
others: {_target_: torch.optim.AdamW, _partial_: true, lr: 2e-3}
"""


@pytest.fixture
def own(tmp_path: Path) -> Path:
    (tmp_path / "conf/optimizer").mkdir(parents=True)
    (tmp_path / "conf/optimizer/mixed.yaml").write_text(MIXED)
    return tmp_path / "conf"


def made(cfg: DictConfig) -> tuple[Any, Any]:
    """The model, and the optimizer of its parameters."""
    data = build_data(cfg)
    task = make_task(cfg, data, model := build(cfg, data))
    return model, task.make_optimizer(task.parameter_groups())


def test_models_state_the_roles_of_their_parameters(tmp_path: Path) -> None:
    text = build(ablate.compose(*overrides(tmp_path, "pos_enc=learned"))).roles()
    assert set(text.values()) == {"embedding", "matrix", "vector"}  # the head is tied
    embedding = {name for name, role in text.items() if role == "embedding"}
    assert embedding == {"embedding.weight", "stack.pos_enc.table"}
    untied = build(ablate.compose(*overrides(tmp_path, "model.tie_embeddings=false"))).roles()
    assert untied["head.weight"] == "head"
    vit = build(ablate.compose(*images(tmp_path))).roles()
    assert {vit[name] for name in vit if name.endswith("bias")} == {"vector"}
    resnet = build(ablate.compose("model=resnet", "data=digits")).roles()
    assert {*vit.values(), *resnet.values()} == {*ROLES}


def test_each_role_has_its_rule(own: Path, tmp_path: Path) -> None:
    model, optimizer = made(ablate.compose(*overrides(tmp_path, "optimizer=mixed"), config_dir=own))
    start = {name: p.detach().clone() for name, p in model.named_parameters()}
    gradients = {name: torch.randn_like(p) for name, p in model.named_parameters()}
    for _ in range(2):
        for name, p in model.named_parameters():
            p.grad = gradients[name].clone()
        optimizer.step()
    for name, role in model.roles().items():
        alone = torch.nn.Parameter(start[name].clone())
        decay: dict[str, Any] = {"weight_decay": 0.0} if role == "vector" else {}
        rule = (
            torch.optim.SGD([alone], lr=0.1, momentum=0.9, weight_decay=0.1)
            if role == "matrix"
            else torch.optim.AdamW([alone], lr=2e-3, **decay)
        )
        for _ in range(2):
            alone.grad = gradients[name].clone()
            rule.step()
        torch.testing.assert_close(model.get_parameter(name), alone, rtol=0, atol=0)


def test_muon_trains_matrices_with_the_rate_of_all(tmp_path: Path) -> None:
    typed = overrides(tmp_path, "optimizer=muon", "optimizer.lr=3e-3")
    model, optimizer = made(ablate.compose(*typed))
    groups = zip(optimizer.param_groups, optimizer.rules, strict=True)
    found = [(g["role"], type(rule).__name__, g["lr"], g["weight_decay"]) for g, rule in groups]
    assert found == [
        ("embedding", "AdamW", 3e-3, 0.1),
        ("matrix", "Muon", 3e-3, 0.1),
        ("vector", "AdamW", 3e-3, 0.0),
    ]
    name = next(name for name, role in model.roles().items() if role == "matrix")
    weight = model.get_parameter(name)
    before = weight.detach().clone()
    weight.grad = torch.randn_like(weight)
    optimizer.rules[1].step()
    decayed = before * (1 - 3e-3 * 0.1)
    steps = torch.linalg.svdvals((decayed - weight) / (3e-3 * 0.2 * max(weight.shape) ** 0.5))
    assert 0.6 < steps.min() < steps.max() < 1.3  # Newton-Schulz brings them near 1


def test_a_rule_with_a_wrong_value_is_refused(tmp_path: Path) -> None:
    wrong = "optimizer.matrix.adjust_lr_fn=none"
    with pytest.raises(UserError, match=r"optimizer\.matrix: .*none"):
        made(ablate.compose(*overrides(tmp_path, "optimizer=muon", wrong)))


@pytest.mark.usefixtures("no_figures")
def test_several_rules_resume_bit_for_bit(own: Path, tmp_path: Path) -> None:
    mixed = overrides(tmp_path, "trainer.max_steps=14", "checkpoint_every=3", "optimizer=mixed")
    cfg = ablate.compose(*mixed, config_dir=own)
    ablate.run(cfg, tmp_path / "whole")
    assert strike(cfg, tmp_path / "killed", **at_step(5)) == -signal.SIGKILL
    ablate.run(cfg, tmp_path / "killed")
    assert_equal(tmp_path / "killed", tmp_path / "whole")
    other = ablate.compose(*mixed, config_dir=own)
    other.optimizer.matrix.lr = 0.2
    assert Composition(other).folder != Composition(cfg).folder


def test_a_role_without_a_rule_is_refused(own: Path, tmp_path: Path) -> None:
    (own / "optimizer/mixed.yaml").write_text(MIXED.replace("others:", "vector:"))
    cfg = ablate.compose(*overrides(tmp_path, "optimizer=mixed"), config_dir=own)
    with pytest.raises(UserError, match=r"optimizer\.embedding: .*optimizer\.others"):
        ablate.run(cfg)
