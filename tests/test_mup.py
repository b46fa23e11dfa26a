"""muP over the width and the depth: the coordinate check; factors of rates, decay and scores."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny
from torch import nn

import ablate
from ablate import coordinates
from ablate.errors import UserError
from ablate.task.optimizing import optimizer_of
from ablate.training.coordinates import Distances, distances, slopes

WIDTHS, DEPTHS = (32, 64, 128), (2, 4, 8)
ADAMW = ("optimizer.lr=0.01", "model.tie_embeddings=false", "model.heads=4")
# With a rate at which matrices, and not tables, are what moves activations.
MUON = ("optimizer=muon", "optimizer.lr=0.001", "+optimizer.matrix.lr=0.05", *ADAMW[1:])


def measured(path: Path, *more: str, steps: int = 3) -> Distances:
    cfg = ablate.compose(*tiny.overrides(path, "model.depth=2", "model.dropout=0", *more))
    return distances(cfg, steps)


def last_slopes(path: Path, key: str, sizes: tuple[int, ...], *more: str) -> dict[str, float]:
    """The powers of the sizes that the distances go by after the last step."""
    found = slopes(sizes, [measured(path, *more, f"{key}={size}") for size in sizes])
    return {kind: each[-1] for kind, each in found.items()}


@pytest.mark.ci
@pytest.mark.parametrize("optimizer", [ADAMW, MUON], ids=["adamw", "muon"])
def test_coordinates_move_as_far_at_any_width(tmp_path: Path, optimizer: tuple[str, ...]) -> None:
    with_it = last_slopes(tmp_path, "model.dim", WIDTHS, *optimizer, "model.base_dim=32")
    without = last_slopes(tmp_path, "model.dim", WIDTHS, *optimizer)
    # So narrow models change their logits a little less with the width.
    bounds = {"attention": 0.2, "feed_forward": 0.2, "stream": 0.2, "output": 0.35}
    assert with_it.keys() == bounds.keys()
    assert all(abs(with_it[kind]) < bound for kind, bound in bounds.items()), with_it
    assert min(without[kind] for kind in ("stream", "output")) > 0.35, without


@pytest.mark.ci
def test_the_stream_moves_as_far_at_any_depth(tmp_path: Path) -> None:
    plain = ("optimizer.lr=0.003", "model.dim=64", "model.heads=4", "model.init_depth_scale=false")
    with_it = last_slopes(tmp_path, "model.depth", DEPTHS, *plain, "model.base_depth=2")
    without = last_slopes(tmp_path, "model.depth", DEPTHS, *plain)
    assert abs(with_it["stream"]) < 0.3, with_it
    assert without["stream"] > 0.8, without


def test_at_the_size_itself_nothing_changes(tmp_path: Path) -> None:
    size = ("model.dim=32", "model.heads=2", "model.init_depth_scale=false")
    based = ("model.base_dim=32", "model.base_heads=2", "model.base_depth=2")
    assert measured(tmp_path, *size, *based) == measured(tmp_path, *size)


@pytest.mark.ci
def test_the_command_prints_the_slopes_and_draws_them(
    tmp_path: Path, printed: Callable[..., str]
) -> None:
    more = ("model.dim=8,16", "model.base_dim=8", "--steps", "2", "--out", str(tmp_path / "c.png"))
    out = printed(coordinates, *tiny.overrides(tmp_path), *more)
    cfg = [ablate.compose(*tiny.overrides(tmp_path, f"model.dim={n}", more[1])) for n in (8, 16)]
    for kind, each in slopes((8, 16), [distances(one, 2) for one in cfg]).items():
        (line,) = [line for line in out.splitlines() if kind in line]
        assert re.findall(r"[+-]\d\.\d\d", line) == [f"{slope:+.2f}" for slope in each]
    assert (tmp_path / "c.png").stat().st_size > 1000


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("model.dim=8,16 model.depth=1,2", "set either model.dim or model.depth to several"),
        ("seed=1", "such as model.dim=64,128,256"),
        ("model.dim=8,x", "model.dim=8,x: must be integers"),
        ("model.dim=8,8", "two sizes at least"),
        ("model.dim=8,16 --steps 0", "--steps 0: must be 1 at least"),
        ("model.dim=8,16 --out a.pdf", "--out a.pdf: must be a file NAME.png"),
        ("model.dim=8,16 model.base_dim=8 optimizer=sgd", "muP is defined here for"),
    ],
)
def test_what_has_no_slope_is_refused(words: str, says: str, printed: Callable[..., str]) -> None:
    with pytest.raises(UserError, match=re.escape(says)):
        printed(coordinates, *words.split())


def test_activations_that_do_not_move_have_no_slope() -> None:
    with pytest.raises(UserError, match="the stream changes by 0, 1, which has no slope"):
        slopes((1, 2), [{"stream": [0.0]}, {"stream": [1.0]}])
    assert slopes((1, 10, 100), [{"x": [3.0 * n**2]} for n in (1, 10, 100)])["x"] == [
        pytest.approx(2.0)
    ]


def groups(path: Path, *given: str) -> tuple[Any, dict[str, Any]]:
    """The model, and the group of each role in the optimizer."""
    task = tiny.built(*tiny.overrides(path, *given))
    model, found, roles = task.model, {}, task.model.roles()
    for group in optimizer_of(task).param_groups:
        ids = {id(parameter) for parameter in group["params"]}
        (role,) = {roles[name] for name, p in model.named_parameters() if id(p) in ids}
        found[role] = group
    return model, found


@pytest.mark.ci
@pytest.mark.parametrize(
    ("optimizer", "factor"),
    [
        ("optimizer=adamw", 1 / 4),
        ("optimizer=muon", 1 / 2),
        ("optimizer=muon optimizer.matrix.adjust_lr_fn=original", 1),
        ("optimizer=muon +optimizer.matrix.lr=0.3", 1 / 2),
    ],
)
def test_settings_by_role(tmp_path: Path, optimizer: str, factor: float) -> None:
    plain = (*optimizer.split(), "model.dim=16", "model.init_depth_scale=false")
    based = ("model.base_dim=4", "model.base_depth=2", "model.depth=4", "model.base_heads=1")
    (model, ours), (_, given) = (
        groups(tmp_path, *plain, *based),
        groups(tmp_path, *plain, "model.dim=4", "model.base_dim=16"),
    )
    assert ours.keys() == given.keys() == {"embedding", "matrix", "vector"}
    usual = {role: ours[role] for role in ("embedding", "vector")}
    assert {group["lr"] for group in usual.values()} == {2e-3}
    assert [usual[role]["weight_decay"] for role in usual] == [0.1, 0.0]
    tuned = 0.3 if "lr=0.3" in optimizer else 2e-3
    # Half the depth ratio, a quarter of the width.
    assert usual["embedding"]["eps"] == pytest.approx(1e-8 / 8)
    assert ours["matrix"]["lr"] == pytest.approx(tuned * factor)
    assert ours["matrix"]["lr"] * ours["matrix"]["weight_decay"] == pytest.approx(tuned * 0.1)
    assert given["matrix"]["lr"] == pytest.approx(tuned / factor)  # to a narrower model
    assert model.stack.layers[0].query_scale == (4 / 16 * 2) ** 0.5  # widths of heads: 4, 8
    connections = [s.connection for block in model.stack.blocks for s in block.values()]
    assert [each.factor for each in connections] == [0.5] * 8


def test_a_head_keeps_its_rate_and_a_frozen_model_has_one(tmp_path: Path) -> None:
    untied = ("model.tie_embeddings=false", "model.base_dim=4", "model.dim=16")
    model, found = groups(tmp_path, *untied)
    assert isinstance(model.head, nn.Linear)
    assert {role: group["lr"] for role, group in found.items()} == pytest.approx(
        {"embedding": 2e-3, "head": 2e-3, "matrix": 5e-4, "vector": 2e-3}
    )
    assert groups(tmp_path, *untied, "model.freeze=encoder")[1].keys() == {"head"}


@pytest.mark.ci
@pytest.mark.parametrize(
    "given",
    [
        *("optimizer=soap", "optimizer=sgd", "optimizer=adam optimizer.weight_decay=0.1"),
        *("model.attention=dot", "model.ffn_dim=8", "pos_enc=learned_from_sinusoidal"),
        "optimizer=muon +optimizer.embedding={_target_:torch.optim.Muon,_partial_:true}",
    ],
)
def test_what_has_no_rule_is_refused(given: str) -> None:
    with pytest.raises(UserError, match=r"model\.base_dim=64: muP is defined here for"):
        ablate.compose("model.base_dim=64", *given.split())


@pytest.mark.parametrize(
    "given",
    ["model.norm=post", "model.connection=rezero", "model.init_depth_scale=true", "optimizer=sgd"],
)
def test_what_has_no_rule_over_the_depth_is_refused(given: str) -> None:
    with pytest.raises(UserError, match=r"model\.base_depth=2: muP is defined here for"):
        ablate.compose("model.base_depth=2", "model.init_depth_scale=false", given)
