"""Both forecasters: attention over the past, and forecasts that feed forecasts."""

from functools import partial

import pytest
import torch
from make_model import SIZES, normal, random_parts, tiny
from torch.testing import assert_close

from ablate.errors import UserError
from ablate.systems.forecasting.forecaster import roll_out

LENGTH, CHANNELS = SIZES["rnn_forecaster"]["length"], SIZES["rnn_forecaster"]["channels"]
rnn_forecaster = partial(tiny, "rnn_forecaster")
transformer_forecaster = partial(tiny, "transformer_forecaster")
BOTH = pytest.mark.parametrize("make", [rnn_forecaster, transformer_forecaster])


def test_attention_of_the_rnn_is_luongs_over_the_past():
    model = random_parts(rnn_forecaster(attention="dot", predict_residual=False)).eval()
    values = normal(2, LENGTH, CHANNELS)
    layer = model.recurrent.layers[0]
    h = torch.zeros(2, 6, dtype=torch.float64)
    states = []
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


@BOTH
def test_the_difference_is_what_the_model_adds_to_the_last_value(make):
    values = normal(2, LENGTH, CHANNELS)
    model, direct = (
        random_parts(make(attention="dot")),
        random_parts(make(attention="dot", predict_residual=False)),
    )
    assert_close(model(values), values + direct(values))
    torch.nn.init.zeros_(model.head.weight)
    torch.nn.init.zeros_(model.head.bias)
    assert torch.equal(model(values), values)  # the naive forecast


@BOTH
def test_a_forecast_is_read_as_a_value(make):
    model = random_parts(make(attention="dot")).eval()
    values = normal(3, LENGTH, CHANNELS)
    known = [row.clone() for row in values.unbind(1)]
    for _ in range(5):
        known.append(model(torch.stack(known[-LENGTH:], 1))[:, -1].detach())
    rolled = roll_out(model, values, 5)
    assert_close(rolled, torch.stack(known[LENGTH:], 1))
    assert not rolled.requires_grad
    assert_close(roll_out(model, values, 2), rolled[:, :2])


def test_an_rnn_reads_longer_windows_and_learned_positions_do_not():
    longer = normal(2, 2 * LENGTH, CHANNELS)
    model = random_parts(rnn_forecaster(attention="additive")).eval()
    assert_close(model(longer)[:, :LENGTH], model(longer[:, :LENGTH]))
    with pytest.raises(UserError, match=f"trained for {LENGTH} positions"):
        transformer_forecaster().double()(longer)
    assert transformer_forecaster(pos_enc="rotary").double()(longer).shape == longer.shape
