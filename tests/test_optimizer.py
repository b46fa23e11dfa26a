"""Optimizers that have a rule for each role of parameters, and schedules of the rate."""

from math import cos, pi
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import DictConfig
from refusals import refused
from test_resume import assert_resumes, at_step
from tiny import images, overrides, task_of

import ablate
from ablate.config.composition import Composition, compose
from ablate.errors import UserError
from ablate.model.base import ROLES
from ablate.optimizer.schedule import warming_up, warmup_steps
from ablate.optimizer.schedule.constant import constant
from ablate.optimizer.schedule.cosine import cosine
from ablate.optimizer.schedule.linear import linear
from ablate.optimizer.schedule.noam import noam
from ablate.optimizer.schedule.wsd import wsd
from ablate.task.optimizing import groups_of
from ablate.training.build import build, build_data
from ablate.training.trainer import make_trainer

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
    task = task_of(cfg)
    return task.model, task.make_optimizer(groups_of(task))


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
    optimizer = made(ablate.compose(*typed))[1]
    groups = zip(optimizer.param_groups, optimizer.rules, strict=True)
    found = [(g["role"], type(rule).__name__, g["lr"], g["weight_decay"]) for g, rule in groups]
    assert found == [
        ("embedding", "AdamW", 3e-3, 0.1),
        ("matrix", "Muon", 3e-3, 0.1),
        ("vector", "AdamW", 3e-3, 0.0),
    ]


@pytest.mark.parametrize("rule", ["adamw", "muon"])
def test_cautious_decay_spares_the_weights_that_move_away_from_zero(
    rule: str, tmp_path: Path
) -> None:
    """Against the step of the rule without decay, from equal weights and gradients."""
    muon = "+optimizer.matrix={_target_: torch.optim.Muon, _partial_: true}"
    chosen = ["optimizer.weight_decay=0.5", *([muon] if rule == "muon" else [])]
    model, optimizer = made(ablate.compose(*overrides(tmp_path, "optimizer=cautious", *chosen)))
    plain, free = made(
        ablate.compose(
            *overrides(tmp_path, "optimizer=cautious", *chosen[1:], "optimizer.weight_decay=0")
        )
    )
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for name, p in model.named_parameters():
        p.grad = torch.randn_like(p)
        plain.get_parameter(name).grad = p.grad.clone()
    optimizer.step()
    free.step()
    for name, role in model.roles().items():
        w, moved = before[name], plain.get_parameter(name)
        decayed = moved - 2e-3 * 0.5 * w * ((w - moved).sign() * w.sign() >= 0)
        expected = moved if role == "vector" else decayed
        torch.testing.assert_close(model.get_parameter(name), expected, rtol=0, atol=1e-7)
    assert {group["weight_decay"] for group in optimizer.param_groups} == {0.0, 0.5}


def test_cautious_decay_must_be_decoupled(tmp_path: Path) -> None:
    coupled = "optimizer.others._target_=torch.optim.Adam"
    cfg = ablate.compose(*overrides(tmp_path, "optimizer=cautious", coupled))
    with refused(r"the weight decay of torch.optim.Adam is a part of the gradient"):
        made(cfg)


@pytest.mark.parametrize("rule", ["muon", "adam"])
def test_hyperball_turns_matrices_by_a_fixed_length_and_keeps_their_norm(
    rule: str, tmp_path: Path
) -> None:
    """Against the step of the rule alone, whose length and rate do not matter."""
    typed = overrides(tmp_path, f"optimizer={rule}h")
    model, optimizer = made(ablate.compose(*typed, "optimizer.matrix.lr=0.05"))
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for p in model.parameters():
        p.grad = torch.randn_like(p)
    optimizer.step()
    for name, role in model.roles().items():
        old, new = before[name], model.get_parameter(name).detach()
        alone = torch.nn.Parameter(old.clone())
        alone.grad = model.get_parameter(name).grad
        if role != "matrix":
            torch.optim.AdamW([alone], lr=2e-3, weight_decay=0.0).step()
            torch.testing.assert_close(new, alone.detach(), rtol=0, atol=1e-6)
            continue
        getattr(torch.optim, rule.title())([alone], lr=1e-2, weight_decay=0.0).step()
        u = old - alone.detach()
        w = old - 0.05 * old.norm() * u / u.norm()
        torch.testing.assert_close(new, old.norm() * w / w.norm(), rtol=0, atol=1e-6)
        torch.testing.assert_close(new.norm(), old.norm())
    for group in optimizer.param_groups:  # the end of a schedule
        group["lr"] = 0.0
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer.step()
    torch.testing.assert_close(dict(model.named_parameters()), before, rtol=1e-6, atol=0)


def test_hyperball_lets_the_norm_of_a_matrix_of_zeros_grow(tmp_path: Path) -> None:
    model, optimizer = made(
        ablate.compose(*overrides(tmp_path, "optimizer=adamh", "model.attention=additive"))
    )
    (v,) = [p for name, p in model.named_parameters() if name.endswith("score.v")]
    assert not v.any()
    for _ in range(2):
        before = v.detach().clone()
        for p in model.parameters():
            p.grad = torch.ones_like(p)
        optimizer.step()
        expected = torch.tensor(0.02 * 0.02 * v.numel() ** 0.5)
        torch.testing.assert_close((v - before).norm().detach(), expected)


def test_hyperball_refuses_a_decay_of_matrices(tmp_path: Path) -> None:
    typed = overrides(tmp_path, "optimizer=muonh", "+optimizer.matrix.weight_decay=0.1")
    with pytest.raises(UserError, match=r"optimizer\.matrix\.weight_decay: Hyperball keeps"):
        made(ablate.compose(*typed))


def test_a_rule_with_a_wrong_value_is_refused(tmp_path: Path) -> None:
    wrong = "optimizer.matrix.adjust_lr_fn=none"
    with pytest.raises(UserError, match=r"optimizer\.matrix\.adjust_lr_fn=none: must be original"):
        made(ablate.compose(*overrides(tmp_path, "optimizer=muon", wrong)))


@pytest.mark.ci
def test_several_rules_resume_bit_for_bit_and_count_in_the_id(own: Path, tmp_path: Path) -> None:
    mixed = overrides(tmp_path, "trainer.max_steps=14", "checkpoint_every=3", "optimizer=mixed")
    cfg = ablate.compose(*mixed, config_dir=own)
    ablate.run(cfg, tmp_path / "whole")
    assert_resumes((cfg, tmp_path / "whole"), tmp_path / "killed", **at_step(5))
    other = ablate.compose(*mixed, "optimizer.matrix.lr=0.2", config_dir=own)
    assert Composition(other).folder != Composition(cfg).folder


def test_a_role_without_a_rule_is_refused(own: Path, tmp_path: Path) -> None:
    (own / "optimizer/mixed.yaml").write_text(MIXED.replace("others:", "vector:"))
    cfg = ablate.compose(*overrides(tmp_path, "optimizer=mixed"), config_dir=own)
    with pytest.raises(UserError, match=r"optimizer\.embedding: .*optimizer\.others"):
        ablate.run(cfg)


# Learning rates against the published formulas


def mine(step, total_steps, *, warmup):
    """A custom schedule."""
    return warming_up(step, warmup_steps("mine", warmup, total_steps))


def test_cosine_is_nanogpts():
    """nanoGPT's get_lr: warm-up (it + 1) / (warm-up + 1), then a cosine from 1e-3 to 1e-4."""
    peak, low, warmup, total = 1e-3, 1e-4, 100, 2000

    def nanogpt(it):
        if it < warmup:
            return peak * (it + 1) / (warmup + 1)
        ratio = (it - warmup) / (total - warmup)
        return low + 0.5 * (1 + cos(pi * ratio)) * (peak - low)

    for step in (0, 50, 99, 100, 101, 1000, 1999, 2000):
        ours = peak * cosine(step, total, warmup=warmup, floor=0.1)
        assert ours == pytest.approx(nanogpt(step), rel=1e-12)


def test_constant_by_hand():
    assert [constant(step, 10, warmup=1) for step in (0, 1, 9)] == [0.5, 1.0, 1.0]


@pytest.mark.parametrize(
    ("schedule", "warmup", "total", "steps"),
    [
        (cosine, 7, 10, 7),
        (noam, 0.1, 10, 1),
        (linear, 0.375, 400, 150),
        (constant, 0.1, 3, 1),
        # By default as usual, which gives way to a short training.
        (constant, "auto", 60, 0),
        (cosine, "auto", 10000, 100),
        (noam, "auto", 10000, 400),
        (linear, "auto", 198, 99),
        (cosine, "auto", 1, 0),
        (mine, "auto", 300, 100),
    ],
)
def test_a_warm_up_counts_in_steps_or_is_a_share_or_is_usual(schedule, warmup, total, steps):
    assert warmup_steps(schedule.__name__, warmup, total) == steps
    floor = {"floor": 0.1} if schedule in (cosine, linear) else {}
    for step in range(min(total, 500)):
        given = schedule(step, total, warmup=steps, **floor)
        assert schedule(step, total, warmup=warmup, **floor) == given


def told(capsys, *more):
    cfg = compose("model=vit", "trainer.val_check_interval=null", *more)
    make_trainer(cfg.trainer, cfg.schedule, Path("nowhere"), build_data(cfg), [])
    return [line for line in capsys.readouterr().out.splitlines() if "warm-up" in line]


def test_a_run_says_where_the_default_warm_up_gave_way(capsys):
    five = "trainer.max_steps=5"
    assert told(capsys, five) == ["ablate: warm-up: 2 of 5 steps (schedule.warmup=auto)"]
    assert told(capsys) == []
    assert told(capsys, five, "schedule.warmup=2") == []
    assert told(capsys, five, "schedule=constant", "schedule.warmup=auto") == []


def test_a_number_longer_than_the_training_is_refused_with_the_way_out(capsys):
    line = r"schedule\.warmup=6 is longer than the training of 5 steps; use schedule\.warmup=auto"
    with pytest.raises(UserError, match=line):
        compose("trainer.max_steps=5", "schedule.warmup=6")
    assert compose("trainer.max_steps=5", "schedule.warmup=5").schedule.warmup == 5
    # Where the training counts in epochs, once the data is read.
    epochs = ("trainer.max_steps=-1", "trainer.max_epochs=1", "schedule.warmup=600")
    with pytest.raises(UserError, match=r"schedule\.warmup=600 is longer than the training of \d"):
        told(capsys, *epochs)


@pytest.mark.parametrize("warmup", ["null", "[1,2]", "slow"])
def test_the_warm_up_of_a_custom_schedule_may_be_anything(capsys, warmup):
    typed = ("schedule=constant", f"schedule._target_={__name__}.mine", f"schedule.warmup={warmup}")
    assert told(capsys, *typed) == []


@pytest.mark.parametrize(("shape", "falling"), [("linear", 0.5), ("sqrt", 1 - 0.5**0.5)])
def test_wsd_is_stable_and_then_falls(shape, falling):
    def rate(step, **keys):
        return wsd(step, 100, warmup=10, shape=shape, **keys)

    assert rate(0, decay=20, floor=0.0) == pytest.approx(1 / 11)
    assert {rate(step, decay=20, floor=0.0) for step in (10, 50, 80)} == {1.0}
    assert rate(90, decay=20, floor=0.0) == pytest.approx(falling)
    assert rate(90, decay=0.2, floor=0.1) == pytest.approx(0.1 + 0.9 * falling)
    assert rate(100, decay=20, floor=0.1) == pytest.approx(0.1)
    with pytest.raises(UserError, match=r"schedule\.decay=1: must be an integer of at least 2"):
        compose("schedule=wsd", "schedule.decay=1")
    with pytest.raises(UserError, match=r"schedule\.decay=95 are 10 and 95 steps"):
        rate(0, decay=95, floor=0.0)
