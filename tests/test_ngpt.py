"""nGPT: against its equations, written out; weights of length 1 after every step."""

from pathlib import Path
from typing import Any

import pytest
import torch
from make_model import gpt, random_parts, tokens
from test_resume import SHORT, assert_resumes, at_step
from tiny import built, overrides
from torch import Tensor
from torch.testing import assert_close

import ablate
from ablate.task.optimizing import optimizer_of
from ablate.training.build import build
from ablate.training.float8 import Float8, OnCPU
from ablate.training.load import load

HEADS, DIM, DEPTH = 2, 12, 2
NGPT: dict[str, Any] = {
    "connection": "sphere", "attention": "cosine_weighted", "ffn": "swiglu_scaled", "norm": "none",
    "pos_enc": "rotary", "bias": False, "tie_embeddings": False, "unit_weights": True,
    "logit_scale": True, "dim": DIM, "heads": HEADS, "depth": DEPTH,
}  # fmt: skip
# The axis of length 1 of each weight: inputs of maps and entries of tables, but the outputs of maps
# into the residual stream.
AXES = {"out": 0, "down": 0, "query": 1, "key": 1, "value": 1, "up": 1, "gate": 1}


def unit(x: Tensor) -> Tensor:
    return x / x.square().sum(-1, keepdim=True).sqrt()


def rotary(x: Tensor) -> Tensor:
    """Pair m, of features m and m + k / 2, turned by n / 10,000^(2m / k) at position n."""
    length, k = x.shape[-2:]
    angles = torch.arange(length)[:, None] * 10_000 ** (-torch.arange(0, k, 2).double() / k)
    x1, x2 = x.chunk(2, dim=-1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([x1 * cos - x2 * sin, x1 * sin + x2 * cos], -1)


def written_out(w: dict[str, Tensor], text: Tensor) -> Tensor:
    """Logits by the equations of the paper, from our named parameters; its section 2.6 has the
    factors between a trained number and the number that acts, init / scale."""
    root = DIM**0.5
    later = torch.ones(text.shape[1], text.shape[1]).triu(1).bool()

    def joined(at: str, h: Tensor, y: Tensor) -> Tensor:
        alpha = (w[f"{at}.connection.rate.weight"] / DEPTH * root).abs()
        return unit(h + alpha * (unit(y) - h))  # equations 10 and 11

    h = unit(w["embedding.weight"][text])
    for layer in range(DEPTH):
        at = f"stack.blocks.{layer}.attention"
        q, k, v = (
            (h @ w[f"{at}.function.{name}.weight"].T).unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for name in ("query", "key", "value")
        )
        s_qk = (root * w[f"{at}.function.score.scale.weight"]).view(HEADS, 1, -1)
        q, k = unit(rotary(q)) * s_qk, unit(rotary(k)) * s_qk  # equations 15 and 16
        scores = (DIM / HEADS) ** 0.5 * q @ k.mT
        y = scores.masked_fill(later, -torch.inf).softmax(-1) @ v
        h = joined(at, h, y.transpose(1, 2).flatten(2) @ w[f"{at}.function.out.weight"].T)
        at = f"stack.blocks.{layer}.feed_forward"
        u = h @ w[f"{at}.function.up.weight"].T * w[f"{at}.function.up_scale.weight"]
        v = h @ w[f"{at}.function.gate.weight"].T * w[f"{at}.function.gate_scale.weight"] * root
        y = u * v * v.sigmoid()  # equations 20 and 21
        h = joined(at, h, y @ w[f"{at}.function.down.weight"].T)
    return h @ w["head.weight"].T * root * w["logit_scale.weight"]  # equation 3


@pytest.mark.parametrize("kernel", ["reference", "sdpa"])
def test_it_is_the_network_of_its_equations(kernel: str) -> None:
    """With any weights, so that no norm is taken for granted: also of tables."""
    model, text = random_parts(gpt(**NGPT, kernel=kernel)), tokens(2, 7)
    ours = dict(model.named_parameters())
    theirs = {name: p.detach().clone().requires_grad_() for name, p in ours.items()}
    found, expected = model(text), written_out(theirs, text)
    assert expected.std() > 0.1
    assert_close(found, expected, rtol=0, atol=1e-10)
    target = torch.randn_like(expected)
    for logits in (found, expected):
        (logits * target).sum().backward()
    for name, p in ours.items():
        assert p.grad is not None
        assert p.grad.abs().max() > 1e-6, name
        assert_close(p.grad, theirs[name].grad, rtol=0, atol=1e-10)


def test_factors_start_at_one() -> None:
    """But the rates of the residual stream, at 1 / depth, and s_v, at the root of the width."""
    model = gpt(**NGPT | {"depth": 4})
    model.initialize(0)
    expected = {"rate": 1 / 4, "gate_scale": DIM**0.5}
    found = {name: module() for name, module in model.named_modules() if hasattr(module, "ratio")}
    assert len(found) == 4 * 5 + 1
    for name, factors in found.items():
        assert_close(factors, torch.full_like(factors, expected.get(name.split(".")[-1], 1.0)))


def lengths(model: Any) -> dict[str, Tensor]:
    """Of the vectors of every table and map."""
    return {
        name: p.norm(dim=AXES.get(name.split(".")[-2], 1))
        for name, p in model.named_parameters()
        if p.dim() == 2 and "pos_enc" not in name
    }


def assert_unit(model: Any, count: int) -> None:
    found = lengths(model)
    assert len(found) == count
    for name, each in found.items():
        assert_close(each, torch.ones_like(each), rtol=0, atol=1e-6, msg=name)


WEIGHTS = 1 + 2 * 7 + 1
RUN = ("experiment=ngpt", "model.dim=8", "model.depth=2", "model.heads=2")


@pytest.mark.ci
@pytest.mark.parametrize("optimizer", ["adamw", "muon", "sgd", "lion", "cautious"])
def test_weights_have_length_one_after_every_step(optimizer: str, tmp_path: Path) -> None:
    typed = overrides(tmp_path, *RUN, f"optimizer={optimizer}", "optimizer.lr=0.1")
    task = built(*typed)
    model = task.model
    assert_unit(model, WEIGHTS)
    rule = optimizer_of(task)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for step in range(3):
        for p in model.parameters():
            p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(step))
        rule.step()
        assert_unit(model, WEIGHTS)
    for name, p in model.named_parameters():
        assert (p - before[name]).abs().max() > 1e-3, name


def test_frozen_weights_are_left_as_they_are(tmp_path: Path) -> None:
    typed = overrides(tmp_path, *RUN, "model.freeze=embeddings", "trainer.max_steps=3")
    cfg = ablate.compose(*typed, "trainer.val_check_interval=3", "schedule.warmup=0")
    start = build(cfg).embedding.weight
    ablate.run(cfg, tmp_path / "run")
    ended = load(tmp_path / "run").model
    assert torch.equal(ended.embedding.weight, start)
    assert_unit(ended, WEIGHTS)


def test_maps_in_float8_are_normalized_as_well() -> None:
    model: Any = Float8("cpu").convert_module(gpt(**NGPT | {"dim": 16}))
    assert sum(isinstance(part, OnCPU) for part in model.modules()) == DEPTH * 4
    random_parts(model)
    model.after_step()
    assert_unit(model, WEIGHTS)


@pytest.mark.ci
def test_a_killed_run_goes_on_to_the_same_weights(tmp_path: Path) -> None:
    cfg = ablate.compose(*overrides(tmp_path, *RUN, *SHORT))
    ablate.run(cfg, tmp_path / "whole")
    assert_resumes((cfg, tmp_path / "whole"), tmp_path / "killed", **at_step(5))
