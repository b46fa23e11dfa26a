"""Blocks: torch's encoder layers with copied weights; placements and norms by their formulas."""

import pytest
import torch
from make_model import context, copy_to_torch, kernel, normal, options, part, random_parts
from torch import nn
from torch.testing import assert_close

from ablate.errors import UserError
from ablate.model.layers.stack import Stack

B, N, D, H, HIDDEN = 2, 6, 12, 3, 20
SLOTS = {"mixer": "attention", "attention": "scaled_dot", "normalizer": "softmax", "mask": "none"}
SLOTS |= {"ffn": "relu", "norm_type": "layer"}


def stack(**changes):
    chosen = {slot: changes.pop(slot, usual) for slot, usual in SLOTS.items()}
    parts = {
        slot: part(f"model.{slot}", option) if isinstance(option, str) else option
        for slot, option in chosen.items()
    }
    sizes = {
        "depth": 1, "heads": H, "length": N, "causal": False, "ffn_dim": HIDDEN, "norm": "pre",
        "norm_eps": 1e-5, "init_std": None, "residual": True, "dropout": 0.0, "drop_path": 0.0,
        "bias": True, "share_layers": False, "pos_enc": part("pos_enc", "none"),
        "kernel": kernel("reference"),
    }  # fmt: skip
    return random_parts(Stack(D, **(parts | sizes | changes)))


def sublayers(mine):
    """And what their functions take beside the input."""
    for block in mine.blocks:
        yield from ((block.attention, [context()]), (block.feed_forward, []))


def torchs(mine: Stack, *, activation: str, first: bool) -> nn.TransformerEncoder:
    """torch's encoder with our weights."""
    own = {"dropout": 0.0, "activation": activation, "batch_first": True, "norm_first": first}
    layer, norm = nn.TransformerEncoderLayer(D, H, HIDDEN, **own), nn.LayerNorm(D)
    theirs = nn.TransformerEncoder(
        layer, len(mine.blocks), norm=norm if first else None, enable_nested_tensor=False
    ).double()
    copy_to_torch(mine, theirs)
    return theirs


@pytest.mark.parametrize(
    ("norm", "activation", "mask", "padded"),
    [
        ("pre", "relu", "none", True),
        ("pre", "gelu", "causal", False),
        ("post", "gelu", "none", True),
        ("post", "relu", "causal", True),
    ],
)
def test_blocks_equal_torchs(norm, activation, mask, padded):
    mine = stack(norm=norm, ffn=activation, mask=mask, depth=2)
    theirs = torchs(mine, activation=activation, first=norm == "pre")
    x, keep = normal(B, N, D), torch.ones(B, N, dtype=torch.bool)
    keep[1, 4:] = False
    later = torch.ones(N, N, dtype=torch.bool).triu(1) if mask == "causal" else None
    expected = theirs(x, mask=later, src_key_padding_mask=~keep if padded else None)
    assert_close(mine(x, keep=keep if padded else None), expected)


@pytest.mark.parametrize("residual", [True, False])
@pytest.mark.parametrize("norm", ["pre", "post", "sandwich", "output", "none"])
def test_every_placement_is_its_formula(norm, residual):
    mine, x = stack(norm=norm, residual=residual, depth=2), normal(B, N, D)
    y = x
    for sublayer, own in sublayers(mine):
        kept = y if residual else torch.zeros_like(y)
        y = sublayer.norm_before(y) if norm in ("pre", "sandwich") else y
        y = sublayer.function(y, *own)
        y = kept + (sublayer.norm_inside(y) if norm in ("sandwich", "output") else y)
        y = sublayer.norm_after(y) if norm == "post" else y
    normalized = norm in ("pre", "sandwich", "output")
    assert_close(mine(x), mine.final_norm(y) if normalized else y)
    counted = sum(isinstance(module, nn.LayerNorm) for module in mine.modules())
    assert counted == {"pre": 5, "post": 4, "sandwich": 9, "output": 5, "none": 0}[norm]


@pytest.mark.parametrize("name", options("model.connection"))
def test_every_connection_is_its_formula(name):
    mine, x = stack(connection=part("model.connection", name), depth=2), normal(B, N, D)
    streams, n = [x] * mine.streams, range(mine.streams)
    for sublayer, own in sublayers(mine):
        link, y = sublayer.connection, streams[0]
        if name == "hyper":
            more = [torch.tanh(link.norm(stream) @ link.map) for stream in streams]
            of = link.factors
            y = sum((link.reads[s] + of[0] * more[s][..., :1]) * streams[s] for s in n)
            mixed = [
                sum((link.mixes[s, t] + of[1] * more[s][..., [1 + t]]) * streams[s] for s in n)
                for t in n
            ]
        elif name == "sphere":
            y = torch.nn.functional.normalize(y, dim=-1)
        y = sublayer.function(sublayer.norm_before(y), *own)
        if name == "hyper":
            writes = [link.writes[s] + of[2] * more[s][..., -1:] for s in n]
            streams = [mix + write * y for mix, write in zip(mixed, writes, strict=True)]
        else:
            streams = [link.write(streams[0], y, x)]  # test_formulas.py
    assert_close(mine(x), mine.final_norm(sum(streams) / len(n)))


@pytest.mark.parametrize("dynamic", [True, False])
def test_hyper_connections_start_as_a_plain_stream(dynamic):
    """Which autocast does not round, and whose sublayers read one stream after another."""
    plain, x = stack(depth=2, norm="none"), normal(B, N, D)
    own = part("model.connection", "hyper", streams=3, dynamic=dynamic)
    hyper = stack(depth=2, norm="none", connection=own)
    hyper.load_state_dict(plain.state_dict(), strict=False)
    links = [module for module in hyper.modules() if type(module).__name__ == "Hyper"]
    for link in links:
        link.reset_parameters()
    assert [link.reads.argmax().item() for link in links] == [0, 1, 2, 0]
    assert_close(hyper(x), plain(x))
    streams = normal(B, N, 3 * D).float()
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(links[0].float().write(streams, torch.zeros(B, N, D), None), streams)


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_a_parallel_block_adds_both_to_one_input(norm):
    mine, x = stack(norm=norm, parallel=True, mask="causal"), normal(B, N, D)
    (block,) = mine.blocks
    assert list(block) == ["attention"]
    both = block.attention.function
    y = block.attention.norm_before(x)
    y = block.attention.norm_after(x + both.mixer(y, context()) + both.feed_forward(y))
    assert_close(mine(x), mine.final_norm(y))


@pytest.mark.parametrize("recomputed", [True, False])
def test_later_blocks_add_the_values_of_the_first(recomputed):
    """Zhou et al. 2024: equal to blocks whose values are replaced; with gradients."""
    own = part("model.mixer", "attention", value_residual=True)
    mine = stack(mixer=own, depth=3, mask="causal", activation_checkpointing=recomputed)
    y = x = normal(B, N, D)
    first = None
    for block in mine.blocks:
        layer, read = block.attention.function, block.attention.norm_before(y)
        q, k, v = layer.queries(read), layer.keys(read), layer.values(read)
        if first is not None:
            own, others = layer.value_residual.shares
            v = own * v + others * first
        first = v if first is None else first
        y = y + layer.join(layer.context(q, k, v, context().pos), read)
        y = y + block.feed_forward.function(block.feed_forward.norm_before(y))
    outputs, parameters = (mine(x), mine.final_norm(y)), [*mine.parameters()]
    assert_close(*outputs)
    gradients = (
        torch.autograd.grad(
            out.square().sum(), parameters, allow_unused=True, materialize_grads=True
        )
        for out in outputs
    )
    assert_close(*gradients)


def test_layers_that_do_not_fit_together_are_refused():
    own = part("model.mixer", "attention", value_residual=True)
    mine = stack(
        mixer=own,
        depth=2,
        layers=[{}, {"mixer": part("model.mixer", "attention", value_residual=True, kv_heads=1)}],
    )
    with pytest.raises(UserError, match="set the same heads"):
        mine(normal(B, N, D))
    with pytest.raises(UserError, match="as many residual streams, here 1 and 4"):
        stack(depth=2, layers=[{}, {"connection": part("model.connection", "hyper")}])


def test_shared_layers_are_equal_layers():
    shared, three, x = stack(depth=3, share_layers=True), stack(depth=3), normal(B, N, D)
    assert len(shared.blocks) == 1
    for block in three.blocks:
        block.load_state_dict(shared.blocks[0].state_dict())
    three.final_norm.load_state_dict(shared.final_norm.state_dict())
    assert_close(shared(x), three(x))


@pytest.mark.parametrize(
    ("changes", "rates"),
    [
        ({"depth": 4}, [0, 0, 0.1, 0.1, 0.2, 0.2, 0.3, 0.3]),
        ({"depth": 1}, [0.3, 0.3]),
        ({"depth": 4, "share_layers": True}, [0.3, 0.3]),
    ],
)
def test_drop_path_grows_linearly_with_depth(changes, rates):
    found = [layer.drop_path for layer, _ in sublayers(stack(drop_path=0.3, **changes))]
    assert [getattr(drop_path, "p", 0.0) for drop_path in found] == pytest.approx(rates)


def test_drop_path_drops_whole_sublayers_of_whole_examples():
    mine, x = stack(drop_path=0.5, norm="none", ffn="none", ffn_dim=None), normal(400, N, D)
    torch.manual_seed(0)
    added = mine(x) - x
    whole = stack(norm="none", ffn="none", ffn_dim=None)(x) - x
    dropped = (added == 0).all(-1).all(-1)
    assert_close(added[~dropped], 2 * whole[~dropped])
    assert 150 < dropped.sum() < 250


def test_dropout_acts_on_input_weights_and_both_sublayers():
    mine = stack(dropout=0.3)
    places = [mine.dropout, *(layer.dropout for layer, _ in sublayers(mine))]
    assert [place.p for place in places] == [0.3] * 3
    assert mine.blocks[0].attention.function.dropout == 0.3


def made(kind, *, eps=1e-5):
    return part("model.norm_type", kind)(D, bias=True, eps=eps)


@pytest.mark.parametrize("eps", [1e-5, 0.5])
def test_norms_equal_torchs(eps):
    x = 3 + 2 * normal(B, N, D)
    layer, rms, batch = (made(kind, eps=eps).double() for kind in ("layer", "rms", "batch"))
    assert_close(layer(x), nn.functional.layer_norm(x, (D,), eps=eps))
    assert_close(rms(x), x / (x.square().mean(-1, keepdim=True) + eps).sqrt())
    flat = nn.BatchNorm1d(D, eps=eps).double()
    for _ in range(2):  # with the averages of training
        assert_close(batch(x), flat(x.flatten(0, 1)).unflatten(0, (B, N)))
        batch.eval(), flat.eval()


def test_batch_norm_can_be_that_of_several_processes():
    """What Lightning does for trainer.sync_batchnorm=true, which trains on GPUs alone."""
    x = 3 + 2 * normal(B, N, D)
    batch = made("batch").double()
    batch(x)  # averages
    expected = batch.eval()(x)
    synced = nn.SyncBatchNorm.convert_sync_batchnorm(batch)
    assert any(isinstance(part, nn.SyncBatchNorm) for part in synced.modules())
    assert_close(synced(x), expected)


def test_gated_networks_have_as_many_parameters():
    counts = [
        sum(
            p.numel()
            for name, p in part("model.ffn", kind)(32, hidden=128, bias=True).named_parameters()
            if "scale" not in name  # factors of hidden features, which no width is taken for
        )
        for kind in options("model.ffn")
        if kind not in ("none", "moe")
    ]
    assert counts == pytest.approx(counts[:1] * len(counts), rel=0.01)
