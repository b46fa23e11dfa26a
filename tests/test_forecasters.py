"""Both forecasters: nothing from the future, every parameter learns, forecasts feed forecasts."""

from typing import Any

import pytest
import torch
from make_model import build, kernel, normal, options, part, random_parts
from torch import Tensor
from torch.testing import assert_close

from ablate.errors import UserError
from ablate.model.base import Forecaster, roll_out

LENGTH, CHANNELS = 9, 2
SCORES = options("model.attention")
PLAIN = [name for name in options("pos_enc") if not name.endswith("_2d")]


def rnn(attention: str = "none", **changes: Any) -> Forecaster:
    slots = {
        "attention": part("model.attention", attention),
        "normalizer": part("model.normalizer", "softmax"),
        "kernel": kernel("reference"),
    }
    sizes = {"channels": CHANNELS, "length": LENGTH, "dim": 6}
    model: Forecaster = build("rnn_forecaster", **(sizes | slots | changes))
    return model


def transformer(
    attention: str = "scaled_dot", pos_enc: str = "learned", mask: str = "causal", **changes: Any
) -> Forecaster:
    slots = {
        "mixer": part("model.mixer", "attention"),
        "attention": part("model.attention", attention),
        "normalizer": part("model.normalizer", "softmax"),
        "pos_enc": part("pos_enc", pos_enc),
        "mask": part("model.mask", mask),
        "kernel": kernel("reference"),
    }
    sizes = {"channels": CHANNELS, "length": LENGTH, "dim": 12, "heads": 3, "dropout": 0.0}
    model: Forecaster = build("transformer_forecaster", **(sizes | slots | changes))
    return model


MODELS = {
    **{f"rnn {name}": lambda name=name: rnn(name) for name in SCORES},
    **{f"rnn {cell}": lambda cell=cell: rnn("dot", cell=cell) for cell in ("rnn", "lstm")},
    "rnn deep": lambda: rnn("dot", depth=3, residual=True),
    "rnn direct": lambda: rnn("dot", difference=False),
    **{
        f"transformer {name}": lambda name=name: transformer(name)
        for name in SCORES
        if name != "none"
    },
    **{f"transformer {name}": lambda name=name: transformer(pos_enc=name) for name in PLAIN},
    "transformer window": lambda: transformer(mask="window"),
    "transformer direct": lambda: transformer(difference=False),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_forecast_knows_the_values_up_to_it_and_no_later_one(name: str) -> None:
    model, values = random_parts(MODELS[name]()).eval(), normal(2, LENGTH, CHANNELS)
    assert isinstance(model, Forecaster)
    before = model(values)
    for place in range(LENGTH):
        other = values.clone()
        other[:, place] += 1
        after = model(other)
        assert_close(after[:, :place], before[:, :place], rtol=0, atol=1e-12)
        assert (after[:, place] - before[:, place]).abs().min() > 1e-9


@pytest.mark.parametrize("name", MODELS)
def test_every_parameter_gets_a_gradient(name: str) -> None:
    model = random_parts(MODELS[name]())
    model(normal(2, LENGTH, CHANNELS)).square().sum().backward()
    for parameter_name, parameter in model.named_parameters():
        assert parameter.grad is not None, parameter_name
        if not parameter_name.endswith("key.bias"):  # the softmax cancels it
            assert parameter.grad.abs().max() > 0, parameter_name


@pytest.mark.parametrize("make", [rnn, transformer])
def test_the_state_that_attends_is_of_no_use_without_a_past(make: Any) -> None:
    """The first forecast is a function of the first value alone, in any batch."""
    model = random_parts(make("dot")).eval()
    values = normal(3, LENGTH, CHANNELS)
    assert_close(model(values)[:, :1], model(values[:, :1]))
    assert_close(model(values)[1:2], model(values[1:2]))


def test_attention_of_the_rnn_is_luongs_over_the_past() -> None:
    model: Any = random_parts(rnn("dot", difference=False)).eval()
    values = normal(2, LENGTH, CHANNELS)
    layer = model.recurrent.layers[0]
    h = torch.zeros(2, 6, dtype=torch.float64)
    states: list[Tensor] = []
    for x in values.unbind(1):  # torch's gru
        r, z, n = (x @ layer.weight_ih_l0.T + layer.bias_ih_l0).chunk(3, -1)
        old_r, old_z, old_n = (h @ layer.weight_hh_l0.T + layer.bias_hh_l0).chunk(3, -1)
        update = torch.sigmoid(z + old_z)
        h = (1 - update) * torch.tanh(n + torch.sigmoid(r + old_r) * old_n) + update * h
        states.append(h)
        past = torch.stack(states, 1)
        weights = torch.einsum("bjd,bd->bj", past, h).softmax(-1)
        context = torch.einsum("bj,bjd->bd", weights, past)
        a = torch.tanh(torch.cat([context, h], -1) @ model.combine.weight.T)
        forecast = a @ model.head.weight.T + model.head.bias
        assert_close(model(values)[:, len(states) - 1], forecast)


@pytest.mark.parametrize("make", [rnn, transformer])
def test_the_difference_is_what_the_model_adds_to_the_last_value(make: Any) -> None:
    values = normal(2, LENGTH, CHANNELS)
    model, direct = random_parts(make("dot")), random_parts(make("dot", difference=False))
    assert_close(model(values), values + direct(values))
    torch.nn.init.zeros_(model.head.weight)
    torch.nn.init.zeros_(model.head.bias)
    assert torch.equal(model(values), values)  # the naive forecast


@pytest.mark.parametrize("make", [rnn, transformer])
def test_a_forecast_is_read_as_a_value(make: Any) -> None:
    model = random_parts(make("dot")).eval()
    values = normal(3, LENGTH, CHANNELS)
    known = [row.clone() for row in values.unbind(1)]
    for _ in range(5):
        known.append(model(torch.stack(known[-LENGTH:], 1))[:, -1].detach())
    rolled = roll_out(model, values, 5)
    assert_close(rolled, torch.stack(known[LENGTH:], 1))
    assert not rolled.requires_grad
    assert_close(roll_out(model, values, 2), rolled[:, :2])


def test_an_rnn_reads_longer_windows_and_learned_positions_do_not() -> None:
    longer = normal(2, 2 * LENGTH, CHANNELS)
    model = random_parts(rnn("additive")).eval()
    assert_close(model(longer)[:, :LENGTH], model(longer[:, :LENGTH]))
    with pytest.raises(UserError, match=f"trained for {LENGTH} positions"):
        transformer().double()(longer)
    assert transformer(pos_enc="rotary").double()(longer).shape == longer.shape
