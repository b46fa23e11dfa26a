"""muP (model.base_dim): the coordinate check, and what is scaled by how much."""

from pathlib import Path

import pytest
import tiny
import torch
from torch import Tensor

import ablate
from ablate.errors import UserError
from ablate.task.optimizing import groups_of
from ablate.training.build import build, build_data, make_task

WIDTHS = (32, 64, 128, 256)
RATE = 0.01


def steps(path: Path, width: int, *more: str) -> dict[str, float]:
    """How far activations go from where they start in three steps of Adam, by their root mean
    square: the output of the blocks, and the logits."""
    cfg = ablate.compose(
        *tiny.overrides(path, f"model.dim={width}", "model.heads=4", "model.depth=2"),
        *("optimizer=adam", f"optimizer.lr={RATE}", "model.tie_embeddings=false"),
        *("model.dropout=0", *more),
    )
    data = build_data(cfg)
    network = build(cfg, data)
    task = make_task(cfg, data, network)
    optimizer = task.make_optimizer(groups_of(task))
    batch = next(iter(data.train_dataloader()))
    seen: dict[str, list[Tensor]] = {"blocks": [], "logits": []}
    network.stack.blocks[-1].register_forward_hook(
        lambda _, __, output: seen["blocks"].append(output.detach())
    )
    for _ in range(4):
        logits = network(batch["tokens"])
        seen["logits"].append(logits.detach())
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch["targets"].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {name: float((x[-1] - x[0]).square().mean().sqrt()) for name, x in seen.items()}


def slopes(path: Path, *more: str) -> dict[str, float]:
    """The power of the width that the distances go by."""
    measured = [steps(path, width, *more) for width in WIDTHS]
    x = torch.tensor(WIDTHS, dtype=torch.float64).log()
    x = x - x.mean()
    return {
        name: float((x * torch.tensor([m[name] for m in measured]).log()).sum() / x.square().sum())
        for name in measured[0]
    }


def test_coordinates_move_as_far_at_any_width(tmp_path: Path) -> None:
    with_it, without = slopes(tmp_path, "model.base_dim=32"), slopes(tmp_path)
    assert all(abs(slope) < 0.2 for slope in with_it.values()), with_it
    assert min(without.values()) > 0.35, without


def test_at_the_width_itself_nothing_changes(tmp_path: Path) -> None:
    assert steps(tmp_path, 64, "model.base_dim=64") == steps(tmp_path, 64)


def test_rates_by_role(tmp_path: Path) -> None:
    cfg = ablate.compose(*tiny.overrides(tmp_path, "model.base_dim=4", "model.dim=16"))
    data = build_data(cfg)
    model = build(cfg, data)
    task = make_task(cfg, data, model)
    rates = {
        id(parameter): group.get("lr", cfg.optimizer.lr) / cfg.optimizer.lr
        for group in groups_of(task)
        for parameter in group["params"]
    }
    roles = model.roles()
    found = {roles[name]: rates[id(p)] for name, p in model.named_parameters()}
    assert model.stack.layers[0].query_scale == 0.5
    assert found == {"embedding": 1.0, "matrix": 0.25, "vector": 1.0}


@pytest.mark.parametrize(
    "given",
    ["optimizer=muon", "model.attention=dot", "model.ffn_dim=8", "pos_enc=relative"],
)
def test_what_has_no_rule_is_refused(given: str) -> None:
    with pytest.raises(UserError, match=r"model\.base_dim=64: muP is defined here for"):
        ablate.compose("model.base_dim=64", given)
