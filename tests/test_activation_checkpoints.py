"""model.activation_checkpointing: the same values, gradients and dropout, from less memory."""

import pytest
import torch
from make_model import Each, bert, gpt, kernel, normal, random_parts, tokens, transformer, vit
from torch.multiprocessing.reductions import StorageWeakRef
from torch.testing import assert_close
from torch.utils.flop_counter import FlopCounterMode

from ablate.model.base import outputs
from ablate.model.layers import stack
from ablate.model.layers.layer import Cache

CHUNKS = kernel("chunked", chunk=2, compile=False)
BERTS = tokens(2, 9), torch.tensor([[1, 4], [0, 8]]), tokens(2, 9) % 2
MODELS = {
    "gpt": (gpt, (tokens(2, 7),)),
    "bert": (bert, BERTS),
    "vit": (vit, (normal(2, 2, 6, 6),)),
    "transformer": (transformer, (1 + tokens(2, 8), tokens(2, 7))),
}
CHANGES = {
    "dropped blocks": {"drop_path": 0.5},
    "shared blocks": {"share_layers": True},
    "chunks, computed again inside": {"attention": "additive", "kernel": CHUNKS},
    "weights that are drawn": {"normalizer": "hard", "pos_enc": "t5"},
}


def step(model, inputs):
    """Outputs, gradients, and the next random number, of a training step from one seed."""
    torch.manual_seed(0)
    found = {f"output {n}": out for n, out in enumerate(outputs(model(*inputs)))}
    torch.stack([out.square().sum() for out in found.values()]).sum().backward()
    gradients = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    return found | gradients | {"next": torch.rand(1)}


@pytest.mark.ci
@pytest.mark.parametrize(
    ("name", "change"),
    [
        *(("gpt", change) for change in CHANGES),
        ("bert", "shared blocks"),
        ("vit", "dropped blocks"),
        ("transformer", "dropped blocks"),
    ],
)
@pytest.mark.parametrize("how", [True, "selective"])
def test_values_gradients_and_dropout_stay_bit_for_bit(name, change, how, monkeypatch):
    make, inputs = MODELS[name]
    calls = []

    def counted(*args, **kwargs):
        calls.append(args[2].step)
        return again(*args, **kwargs)

    again = stack.recomputed
    monkeypatch.setattr(stack, "recomputed", counted)
    found = []
    for on in (False, how):
        assert not calls
        changes = {"dropout": 0.3} | CHANGES[change]
        model = random_parts(make(activation_checkpointing=on, **changes))
        found.append(step(model, inputs))
    assert calls == ([0, 1, 0, 1] if name == "transformer" else [0, 1])
    assert found[0].keys() >= dict(model.named_parameters()).keys()
    assert_close(*found, rtol=0, atol=0)


def kept(depth, **changes):
    """Bytes that the forward pass leaves for the backward pass, beside the parameters."""
    model, sizes = random_parts(gpt(depth=depth, dropout=0.1, **changes)), {}

    def see(tensor):
        storage = tensor.untyped_storage()
        sizes[StorageWeakRef(storage)] = storage.nbytes()

    with Each(see):
        _output = model(tokens(2, 7))
    others = {StorageWeakRef(p.untyped_storage()) for p in model.parameters()}
    return sum(size for ref, size in sizes.items() if ref not in others and not ref.expired())


def test_a_block_keeps_its_input_alone():
    one = 2 * 7 * 12 * 8  # b i d of 8 bytes
    for shared in (False, True):
        on = {"activation_checkpointing": True, "share_layers": shared}
        assert kept(5, **on) - kept(4, **on) == one
    everything = kept(5) - kept(4)
    assert everything > 10 * one  # the measure sees what a block keeps
    on = {"activation_checkpointing": "selective"}
    assert one < kept(5, **on) - kept(4, **on) < everything


def test_selective_checkpoints_compute_no_linear_map_again():
    def products(how):
        model = random_parts(gpt(activation_checkpointing=how))
        with FlopCounterMode(display=False) as counter:
            model(tokens(2, 7)).sum().backward()
        kept = {op.overloadpacket for op in stack.KEPT}
        return sum(n for op, n in counter.get_flop_counts()["Global"].items() if op in kept)

    none, every, selective = map(products, (False, True, "selective"))
    assert selective == none < every


def test_a_cache_is_filled_once():
    """Generation may run with gradients on; keys read twice would be there twice."""
    model, cache, x = random_parts(gpt(activation_checkpointing=True)), Cache(), tokens(1, 6)
    parts = [model(part, cache=cache) for part in x.split(2, dim=1)]
    assert_close(torch.cat(parts, dim=1), model(x))
    assert cache.length() == 6
