"""Blocks: torch's encoder layers with copied weights, and every placement against its formula."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from make_model import context, kernel, normal, part, random_parts
from torch import Tensor, nn

from ablate.model.layers.stack import Stack, kernels

B, N, D, H, HIDDEN = 2, 6, 12, 3, 20


def stack(**changes: Any) -> Stack:
    keys: dict[str, Any] = {
        "depth": 1,
        "heads": H,
        "mixer": part("model.mixer", "attention"),
        "attention": part("model.attention", "scaled_dot"),
        "normalizer": part("model.normalizer", "softmax"),
        "mask": part("model.mask", "none"),
        "pos_enc": part("pos_enc", "none"),
        "kernel": kernel("reference"),
        "length": N,
        "causal": False,
        "ffn": "relu",
        "ffn_dim": HIDDEN,
        "norm": "pre",
        "norm_type": "layer",
        "norm_eps": 1e-5,
        "init_std": None,
        "residual": True,
        "dropout": 0.0,
        "drop_path": 0.0,
        "bias": True,
        "share_layers": False,
    }
    keys |= changes
    for slot in ("ffn", "norm_type"):
        keys[slot] = part(f"model.{slot}", keys[slot])
    made = Stack(D, **keys)
    random_parts(made)
    return made


# torch's encoder


def torchs(mine: Stack, *, activation: str, first: bool) -> nn.TransformerEncoder:
    """torch's encoder with our weights."""
    layer = nn.TransformerEncoderLayer(
        D, H, HIDDEN, dropout=0.0, activation=activation, batch_first=True, norm_first=first
    )
    theirs = nn.TransformerEncoder(
        layer,
        len(mine.blocks),
        norm=nn.LayerNorm(D) if first else None,
        enable_nested_tensor=False,
    ).double()
    for block, copy in zip(mine.blocks, theirs.layers, strict=True):
        attention, feed = block.attention.function, block.feed_forward.function
        joined = [attention.query, attention.key, attention.value]
        norm = "norm_before" if first else "norm_after"
        pairs = [
            (attention.out, copy.self_attn.out_proj),
            (feed.up, copy.linear1),
            (feed.down, copy.linear2),
            (getattr(block.attention, norm), copy.norm1),
            (getattr(block.feed_forward, norm), copy.norm2),
        ]
        with torch.no_grad():
            copy.self_attn.in_proj_weight.copy_(torch.cat([each.weight for each in joined]))
            copy.self_attn.in_proj_bias.copy_(torch.cat([each.bias for each in joined]))
        for ours, other in pairs:
            other.load_state_dict(ours.state_dict())
    if first:
        theirs.norm.load_state_dict(mine.final_norm.state_dict())
    return theirs


@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("mask", ["none", "causal"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_blocks_equal_torchs(norm: str, activation: str, mask: str, padded: bool) -> None:
    mine = stack(norm=norm, ffn=activation, mask=part("model.mask", mask), depth=2)
    theirs = torchs(mine, activation=activation, first=norm == "pre")
    x, keep = normal(B, N, D), torch.ones(B, N, dtype=torch.bool)
    keep[1, 4:] = False
    later = torch.ones(N, N, dtype=torch.bool).triu(1) if mask == "causal" else None
    expected = theirs(x, mask=later, src_key_padding_mask=~keep if padded else None)
    torch.testing.assert_close(mine(x, keep=keep if padded else None), expected)


# Placements


def parts_of(mine: Stack) -> tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]:
    block = mine.blocks[0]
    attention, feed = block.attention.function, block.feed_forward.function
    return lambda x: attention(x, context()), feed


def test_without_norm() -> None:
    mine, x = stack(norm="none"), normal(B, N, D)
    attend, feed = parts_of(mine)
    y = x + attend(x)
    torch.testing.assert_close(mine(x), y + feed(y))
    assert not any("norm" in name for name, _ in mine.named_parameters())


@pytest.mark.parametrize("residual", [True, False])
@pytest.mark.parametrize("norm", ["pre", "post", "sandwich", "none"])
def test_every_placement_is_its_formula(norm: str, residual: bool) -> None:
    mine, x = stack(norm=norm, residual=residual), normal(B, N, D)
    block = mine.blocks[0]
    y = x
    for sublayer, f in zip((block.attention, block.feed_forward), parts_of(mine), strict=True):
        before, inside, after = sublayer.norm_before, sublayer.norm_inside, sublayer.norm_after
        stream = y if residual else torch.zeros_like(y)
        y = {
            "pre": lambda y, f=f, s=stream, n=before: s + f(n(y)),
            "post": lambda y, f=f, s=stream, n=after: n(s + f(y)),
            "sandwich": lambda y, f=f, s=stream, n=before, m=inside: s + m(f(n(y))),
            "none": lambda y, f=f, s=stream: s + f(y),
        }[norm](y)
    normalised = norm in ("pre", "sandwich")
    assert isinstance(mine.final_norm, nn.LayerNorm) == normalised
    torch.testing.assert_close(mine(x), mine.final_norm(y) if normalised else y)
    counted = sum(isinstance(module, nn.LayerNorm) for module in mine.modules())
    assert counted == {"pre": 3, "post": 2, "sandwich": 5, "none": 0}[norm]


def test_without_feed_forward() -> None:
    mine, x = stack(norm="none", ffn="none", ffn_dim=None), normal(B, N, D)
    torch.testing.assert_close(mine(x), x + mine.blocks[0].attention.function(x, context()))


def test_the_hidden_width_is_four_times_the_width_unless_set() -> None:
    assert stack(ffn_dim=None).blocks[0].feed_forward.function.up.out_features == 4 * D
    assert stack(ffn_dim=7).blocks[0].feed_forward.function.up.out_features == 7


# Depth


def test_depth_applies_one_block_after_another() -> None:
    mine, x = stack(depth=3, norm="none"), normal(B, N, D)
    y = x
    for block in mine.blocks:
        y = block(y, context())
    torch.testing.assert_close(mine(x), y)
    assert len({id(p) for p in mine.parameters()}) == 3 * len(list(mine.blocks[0].parameters()))


def test_shared_layers_are_one_block_applied_depth_times() -> None:
    shared, x = stack(depth=3, share_layers=True), normal(B, N, D)
    assert len(shared.blocks) == 1
    y = x
    for _ in range(3):
        y = shared.blocks[0](y, context())
    torch.testing.assert_close(shared(x), shared.final_norm(y))
    # The same as three blocks of their own with the same weights.
    three = stack(depth=3)
    for block in three.blocks:
        block.load_state_dict(shared.blocks[0].state_dict())
    three.final_norm.load_state_dict(shared.final_norm.state_dict())
    torch.testing.assert_close(shared(x), three(x))
    assert not torch.allclose(shared(x), shared.final_norm(shared.blocks[0](
        x, context()
    )))  # fmt: skip


def test_kernels_are_named_layer_by_layer() -> None:
    assert kernels(stack(depth=2, kernel=kernel("sdpa"))) == {
        "blocks.0.attention.function": "sdpa",
        "blocks.1.attention.function": "sdpa",
    }


# Dropout and stochastic depth


@pytest.mark.parametrize("change", [{"dropout": 0.4}, {"drop_path": 0.5, "depth": 2}])
def test_evaluation_drops_nothing(change: dict[str, Any]) -> None:
    mine, x = stack(**change), normal(8, N, D)
    plain = stack(depth=change.get("depth", 1))
    assert not torch.allclose(mine(x), plain(x))
    assert torch.equal(mine.eval()(x), plain(x))
    assert torch.equal(mine(x), mine(x))


def test_drop_path_grows_linearly_from_the_first_block_to_the_last() -> None:
    def rates(**changes: Any) -> list[float]:
        made = stack(drop_path=0.3, **changes)
        sublayers = [s for b in made.blocks for s in (b.attention, b.feed_forward)]
        return [getattr(s.drop_path, "p", 0.0) for s in sublayers]

    assert rates(depth=4) == pytest.approx([0, 0, 0.1, 0.1, 0.2, 0.2, 0.3, 0.3])
    assert rates(depth=1) == [0.3, 0.3]
    assert rates(depth=4, share_layers=True) == [0.3, 0.3]


def test_drop_path_drops_whole_sublayers_of_whole_examples() -> None:
    mine, x = stack(drop_path=0.5, norm="none", ffn="none", ffn_dim=None), normal(400, N, D)
    torch.manual_seed(0)
    added = mine(x) - x
    whole = stack(norm="none", ffn="none", ffn_dim=None)(x) - x
    dropped = (added == 0).all(-1).all(-1)
    torch.testing.assert_close(added[~dropped], 2 * whole[~dropped])
    assert 150 < dropped.sum() < 250


def test_dropout_acts_on_input_weights_and_both_sublayers() -> None:
    mine = stack(dropout=0.3)
    assert mine.dropout.p == 0.3
    assert mine.blocks[0].attention.function.dropout == 0.3
    assert [mine.blocks[0].attention.dropout.p, mine.blocks[0].feed_forward.dropout.p] == [0.3] * 2
    sublayer = mine.blocks[0].feed_forward
    x = normal(B, N, D)
    torch.manual_seed(0)
    y = sublayer(x, context())
    torch.manual_seed(0)
    function = sublayer.function(sublayer.norm_before(x))
    torch.testing.assert_close(y, x + sublayer.dropout(function))
