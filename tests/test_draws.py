"""Random numbers of training, and dropout by them: of the step, the module and the place alone."""

import math
from dataclasses import replace
from functools import partial
from itertools import product

import pytest
import torch
from make_model import (
    gpt,
    kernel,
    normal,
    options,
    part,
    random_parts,
    rnn_lm,
    rnn_seq2seq,
    tiny,
    tokens,
    transformer,
)
from make_systems import rows_of_systems
from test_kernel import KERNELS, Reference, make
from test_rnn_seq2seq import source, target
from torch.testing import assert_close

from ablate.random import draws, dropout
from ablate.random.draws import Draws, Source, draw, draw_at, uniform
from ablate.random.dropout import Dropout
from ablate.random.seeding import derive

KEY = torch.tensor(-0x123456789ABCDEF)


def test_streams_of_other_names_have_other_seeds():
    assert len({derive(1, "ab", "c"), derive(1, "a", "bc"), derive(1, "abc"), derive(11)}) == 4


def number(key, example, head, row, word):
    """splitmix64 with the state key + counter * golden, in Python's integers."""
    counter = word + (row << 18) + (head << 38) + (example << 46)
    x = (key + counter * 0x9E3779B97F4A7C15) % 2**64
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    x = (x ^ x >> 27) * 0x94D049BB133111EB % 2**64
    return x ^ x >> 31


def test_a_number_is_of_its_place_in_any_part():
    whole = draw(KEY, 3, 2, 9, 21)
    for b, h, i, j in product(*map(range, whole.shape)):
        lane = number(int(KEY), b, h, i, j // 4) >> 16 * (j % 4) & 0xFFFF
        assert int(whole[b, h, i, j]) % 2**16 == lane
    for row, column, columns in ((0, 0, 5), (2, 4, 8), (3, 5, 13), (8, 20, 1)):
        rows = min(4, 9 - row)
        found = draw(KEY, 3, 2, rows, columns, row, column)
        assert torch.equal(found, whole[:, :, row : row + rows, column : column + columns])
    assert torch.equal(draw(Source(KEY, row=4).from_row, 3, 2, 5, 21), whole[:, :, 4:])
    rows, columns = torch.tensor([0, 3, 8]), torch.tensor([20, 1, 6])
    assert torch.equal(draw_at(KEY, rows, columns, 2), whole[0][:, rows, columns].T)


def test_other_devices_compute_the_same():
    found = draws._numbers_elsewhere(KEY, 3, 2, 4, 5, 1, 6)
    assert torch.equal(found, draws._numbers(int(KEY), 3, 2, 4, 5, 1, 6))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_uniform_numbers(dtype):
    like = torch.empty(4, 3, 50, 100, dtype=dtype)
    found = uniform(Source(KEY), like)
    assert found.dtype == torch.promote_types(dtype, torch.float32)
    assert found.min() > 0
    assert found.max() < 1
    ranks = found.flatten().double().sort().values
    even = (torch.arange(len(ranks)) + 0.5) / len(ranks)
    assert (ranks - even).abs().max() < 2 / len(ranks) ** 0.5  # Kolmogorov and Smirnov: p < 0.001
    again = uniform(Source(KEY, row=7, column=30), like[:, :, :2, :9])
    assert torch.equal(again, found[:, :, 7:9, 30:39])
    of_second = KEY + draws.signed(2 * draws.EXAMPLE * draws.GOLDEN)  # as Draws.of_batch moves it
    assert torch.equal(uniform(Source(of_second), like[:2]), found[2:])


# Dropout


@pytest.mark.parametrize(
    ("dtype", "shape"), [(torch.float32, (1001,)), (torch.bfloat16, (3, 5, 7)), (torch.float64, ())]
)
def test_units_are_dropped_or_scaled(shape, dtype):
    torch.manual_seed(0)
    x = torch.ones(shape, dtype=dtype, requires_grad=True)
    out = Dropout(0.25)(x)
    assert (out.shape, out.dtype) == (x.shape, dtype)
    assert set(out.flatten().tolist()) <= {0.0, (1 / torch.tensor(0.75, dtype=dtype)).item()}
    (gradient,) = torch.autograd.grad(out.sum(), x)
    assert torch.equal(gradient, out)


@pytest.mark.parametrize("rate", [0.01, 0.3, 0.9])
def test_units_are_dropped_at_their_rate_and_for_themselves(rate):
    torch.manual_seed(0)
    kept = (Dropout(rate)(torch.ones(1000, 1000)) > 0).double()
    sd = (rate * (1 - rate)) ** 0.5
    assert kept.mean().item() == pytest.approx(1 - rate, abs=5 * sd / 1000)
    for axis in (0, 1):  # means of a thousand units spread as means of independent ones
        assert kept.mean(axis).std().item() == pytest.approx(sd / 1000**0.5, rel=0.15)
    for apart in (1, 2, 4):  # units drawn in one number of 64 bits, and beside it
        both = (kept[:, apart:] * kept[:, :-apart]).mean().item()
        assert both == pytest.approx((1 - rate) ** 2, abs=6 * sd / 1000)


@torch.no_grad()
def test_dropout_of_weights_keeps_the_expectation():
    """Of the reference; the other kernels draw the same."""
    times, attend = 4000, make("scaled_dot", "alibi", "causal")
    for name in ("q", "k", "v"):  # one example so many times over, each with draws of its own
        setattr(attend, name, getattr(attend, name)[:1].repeat(times, 1, 1, 1))
    kept = Reference()(attend)[0]
    dropped = Reference()(replace(attend, dropout=0.3, training=True, stream=torch.tensor(7)))
    error = dropped.std(0) / times**0.5
    assert error.min() > 0  # something was dropped in every row
    assert ((dropped.mean(0) - kept).abs() < 5 * error).all()


RANDOM = {"dropout": {"dropout": 0.4}, "hard": {"normalizer": part("model.normalizer", "hard")}}


def results(run, attend):
    out = run.resolve(attend.score.needs | attend.pos.needs)(attend)
    leaves = [attend.q, attend.k, attend.v, *attend.score.parameters()]
    loss = (out * normal(*out.shape, seed=9)).sum()
    return [out, *filter(torch.is_tensor, torch.autograd.grad(loss, leaves, allow_unused=True))]


@pytest.mark.parametrize("case", RANDOM)
@pytest.mark.parametrize("score", ["scaled_dot", "additive"])
@pytest.mark.parametrize("shape", ["square", "cached"])
def test_every_kernel_draws_the_same(score, case, shape):
    attend = make(score, "alibi", "causal", shape=shape, padding="some")
    attend = replace(attend, training=True, stream=KEY, **RANDOM[case])
    expected = results(Reference(), attend)
    for name, run in KERNELS.items():
        if name == "sdpa" and (score == "additive" or case == "hard"):
            continue  # which it refuses
        assert_close(results(run, attend), expected, rtol=1e-10, atol=1e-12)
        other = replace(attend, stream=KEY + 1)
        assert not torch.equal(results(run, other)[0], expected[0])


# Models


def ready(model, step=3):
    bound = Draws(model.train())
    bound.keys = bound.of_batch(0, step)
    return model


@pytest.mark.parametrize(
    ("make", "changes", "inputs", "other"),
    [
        *((gpt, {"normalizer": name}, (tokens(2, 7),), "chunked")
          for name in options("model.normalizer")),
        (gpt, {"attention": "scaled_dot", "kv_heads": 1}, (tokens(2, 7),), "sdpa"),
    ],
)  # fmt: skip
def test_a_model_trains_the_same_with_every_kernel(make, changes, inputs, other):
    found = []
    for run in (kernel("reference"), kernel(other, **{"chunk": 3} if other == "chunked" else {})):
        model = make(**{"dropout": 0.5, "attention": "additive", "kernel": run} | changes)
        out = ready(random_parts(model))(*inputs)
        out.square().sum().backward()
        found.append([out, *(parameter.grad for parameter in model.parameters())])
    assert_close(*found)


TWICE = {"dropout": 0.3, "depth": 3}
MODELS = [
    (gpt, TWICE | {"drop_path": 0.2}, (tokens(2, 7),)),
    (gpt, TWICE | {"share_layers": True, "normalizer": "hard"}, (tokens(2, 7),)),
    (transformer, {"dropout": 0.3, "share_layers": True}, (1 + tokens(2, 8), tokens(2, 7))),
    (rnn_lm, TWICE, (tokens(2, 7),)),
    (rnn_seq2seq, TWICE | {"normalizer": "hard"}, (source(), target())),
    *((partial(tiny, m), row, inputs()) for m, (row, inputs) in rows_of_systems("DRAWS").items()),
]


@pytest.fixture
def used(monkeypatch):
    """The keys and first rows of all that is drawn."""
    found = []

    def seen(key, *sizes):
        found.append((int(key), sizes[4] if len(sizes) > 4 else 0))
        return draw(key, *sizes)

    for module in (draws, dropout):
        monkeypatch.setattr(module, "draw", seen)
    return found


@pytest.mark.parametrize(("make", "changes", "inputs"), MODELS)
def test_nothing_is_drawn_twice_in_a_step(make, changes, inputs, used):
    model = make(**changes)
    for step in (3, 4):
        ready(model, step)(*inputs)
        assert len(set(used)) == len(used) >= 2 * (step - 2)


def masks(**changes):
    """What each module of a GPT drops in a step, 1 or 0; NaN of what was zero before, such as hard
    attention to a key that is dropped in every head."""
    model, found = ready(gpt(dropout=0.4, depth=2, drop_path=0.3, **changes)), {}
    for name, module in model.named_modules():
        if isinstance(module, Dropout):

            def look(_, args, out, name=name):
                found[name] = (out == 0).float().where(args[0] != 0, math.nan)

            module.register_forward_hook(look)
    model(tokens(2, 7))
    return found


@pytest.mark.parametrize(
    "change",
    [
        {"attention": "additive", "pos_enc": "relative", "activation_checkpointing": True},
        {"normalizer": "hard"},
        {"heads": 6},
        {"mixer": "convolution", "norm": "post", "norm_type": "batch"},
    ],
    ids=str,
)
def test_arms_drop_the_same_units(change):
    plain, other = masks(), masks(**change)
    assert len(plain) >= 9
    common = plain.keys() & other.keys()
    assert len(common) >= 5
    for name in common:
        if plain[name].shape == other[name].shape:
            told = ~(plain[name] + other[name]).isnan()
            assert told.any()
            assert torch.equal(plain[name][told], other[name][told]), name
