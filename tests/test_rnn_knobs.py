"""Every knob of the recurrent models does something, and no key is without an entry here."""

from typing import Any

import pytest
import torch
from make_knobs import equal, fitting, keys_of
from make_model import SIZES, kernels, normal, tokens
from torch import Tensor

from ablate.config.composition import compose
from ablate.kernel import chunked
from ablate.training.build import build

START = {
    "rnn_lm": ["model=rnn_lm", "model.dim=12", "model.depth=2", "model.tie_embeddings=false"],
    "rnn_seq2seq": ["model=rnn_seq2seq", "model.dim=12", "model.depth=2"],
    "rnn_forecaster": ["model=rnn_forecaster", "model.dim=12", "model.depth=2"],
    "captioner": ["model=captioner", "model.dim=12", "model.depth=2"],
}
LAYERS: dict[str, list[str]] = {
    "model.dim": ["24"],
    "model.depth": ["3"],
    "model.residual": ["true"],
    "model.dropout": ["0.5"],
}
TABLES: dict[str, list[str]] = {"model.embedding_dim": ["7"], "model.tie_embeddings": ["true"]}
KNOBS: dict[str, dict[str, list[str]]] = {
    "rnn_lm": LAYERS | TABLES,
    "rnn_forecaster": LAYERS | {"model.difference": ["false"]},
    "rnn_seq2seq": LAYERS
    | TABLES
    | {
        "model.bidirectional": ["false"],
        "model.input_feeding": ["true"],
        "model.attention.hidden": ["5"],
    },
    "captioner": {
        "model.dim": ["24"],
        "model.depth": ["3"],
        "model.residual": ["false"],
        "model.dropout": ["0.5"],
        "model.embedding_dim": ["7"],
        "model.gating_scalar": ["false"],
        "model.attention.hidden": ["5"],
    },
}


class Sizes:
    """In place of data: what a model asks of it."""

    def __init__(self, model: str) -> None:
        forecaster = {"channels": 1, "length": 7}
        self.sizes = forecaster if model == "rnn_forecaster" else SIZES[model]


@pytest.fixture(autouse=True)
def _no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """kernel=auto compiles where it can; test_kernel.py does that."""
    monkeypatch.setattr(chunked, "compiler", lambda device: False)


def measured(model: str, *overrides: str) -> dict[str, Tensor]:
    """Parameters, outputs in evaluation, and gradients of a training step, all from one seed."""
    network: Any = build(compose(*START[model], *overrides), Sizes(model))  # type: ignore[arg-type]
    inputs = {
        "rnn_lm": [tokens(2, 7)],
        "rnn_seq2seq": [tokens(2, 8).clamp(min=1), tokens(2, 7)],
        "rnn_forecaster": [normal(2, 7, 1).float()],
        "captioner": [normal(2, 1, 12, 24).float(), tokens(2, 5)],
    }[model]
    found = {f"value {name}": p.detach().clone() for name, p in network.named_parameters()}
    with torch.no_grad():
        found["output"] = network.eval()(*inputs)
    torch.manual_seed(0)
    network.train()(*inputs).square().sum().backward()
    return found | {f"gradient {name}": p.grad for name, p in network.named_parameters()}


@pytest.mark.parametrize("model", KNOBS)
def test_no_key_is_left_out(model: str) -> None:
    assert keys_of(compose(*START[model]), "model") == set(KNOBS[model])
    assert equal(measured(model, "model.dropout=0.1"), measured(model, "model.dropout=0.1"))


@pytest.mark.parametrize(
    ("model", "override"),
    [
        (model, f"{key}={value}")
        for model, knobs in KNOBS.items()
        for key, values in knobs.items()
        for value in values
    ],
)
def test_every_knob_changes_something(model: str, override: str) -> None:
    assert not equal(measured(model), measured(model, override))


@pytest.mark.parametrize(
    ("model", "group"),
    [
        ("rnn_seq2seq", "model.attention"),
        ("rnn_seq2seq", "model.window"),
        ("rnn_seq2seq", "model.decoder"),
        ("captioner", "model.norm_type"),
        *((model, "model.cell") for model in KNOBS),
        ("rnn_forecaster", "model.attention"),
        ("captioner", "model.attention"),
        ("captioner", "model.gate"),
        ("captioner", "pos_enc"),
    ],
)
def test_no_two_options_of_a_group_are_the_same(model: str, group: str) -> None:
    found = {}
    for name in fitting(group, *START[model]):
        size = ["model.window.size=2"] if name.startswith("local") else []
        # Additive attention starts with scores of zero, as uniform attention stays; its own
        # gradients tell them apart, as do its parameters.
        found[name] = measured(model, f"{group}={name}", *size)
    for first in found:
        for second in found:
            assert first == second or not equal(found[first], found[second]), (first, second)


@pytest.mark.parametrize("window", ["local_m", "local_p"])
def test_the_size_of_a_window_changes_something(window: str) -> None:
    chosen = ["model.attention=dot", f"model.window={window}"]
    two, three = (measured("rnn_seq2seq", *chosen, f"model.window.size={n}") for n in (2, 3))
    assert not equal(two, three)


@pytest.mark.parametrize("kernel", kernels())
@pytest.mark.parametrize("decoder", ["luong", "bahdanau"])
def test_a_kernel_changes_nothing(decoder: str, kernel: str) -> None:
    """No more than the rounding of float32."""
    chosen = ["model.attention=general", f"model.decoder={decoder}"]
    reference = measured("rnn_seq2seq", *chosen, "kernel=reference")
    other = measured("rnn_seq2seq", *chosen, f"kernel={kernel}")
    assert reference.keys() == other.keys()
    for name, value in reference.items():
        torch.testing.assert_close(value, other[name], atol=1e-5, rtol=1e-3)
