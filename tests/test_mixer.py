"""Mixers: each against its formula or paper in loops, token by token; what they read and keep."""

import math
from itertools import product

import pytest
import torch
import torch.nn.functional as F
from make_model import context, normal, part, place, random_parts
from torch.testing import assert_close

from ablate.errors import UserError
from ablate.model.layers.layer import Cache
from ablate.model.layers.linear_mixer import Decay
from ablate.model.layers.recurrence import recurrence
from ablate.model.mask.causal import Causal
from ablate.model.mask.none import NoMask
from ablate.model.mask.window import Window

RECURRENT = ["retention", "gla", "delta", "gated_delta", "mamba2"]
B, H, N, K, V, D = 2, 2, 37, 4, 5, 8


def mixer(name, *, mask=None, grid=None, bias=False, pos="none", **own):
    length, mask = N if grid is None else grid[0] * grid[1], mask or Causal(causal=True)
    here = place(D, H, length, mask=mask, grid=grid, bias=bias, pos=pos)
    return random_parts(part("model.mixer", name, **own)(here))


@pytest.mark.parametrize("mask", [Causal(causal=True), Window(causal=True, size=2)])
def test_fixed_weights_are_the_formula(mask):
    fixed, x = mixer("fixed", mask=mask, bias=True), normal(2, 5, D)
    values = (x @ fixed.value.weight.T + fixed.value.bias).unflatten(-1, (H, -1))
    near = mask.allowed(torch.arange(5), torch.arange(5))
    read = torch.zeros_like(values)
    for h, i, j in product(range(H), range(5), range(5)):
        if near[i, j]:
            read[:, i, h] += fixed.weight[h, i, j] * values[:, j, h]
    expected = read.flatten(2) @ fixed.out.weight.T + fixed.out.bias
    assert_close(fixed(x, context()), expected)


@pytest.mark.parametrize("depthwise", [True, False])
@pytest.mark.parametrize("causal", [True, False])
def test_a_convolution_has_a_transform_for_each_relative_position(causal, depthwise):
    mask = Causal(causal=True) if causal else NoMask(causal=False)
    conv = mixer("convolution", mask=mask, bias=True, size=3, depthwise=depthwise)
    x, offsets = normal(2, 7, D), (-2, -1, 0) if causal else (-1, 0, 1)
    expected = conv.bias.expand(2, 7, D).clone()
    for i, (n, offset) in product(range(7), enumerate(offsets)):
        if 0 <= i + offset < 7:
            w = conv.weight[:, :, n]
            w = torch.diag(w[:, 0]) if depthwise else w
            expected[:, i] += x[:, i + offset] @ w.T
    assert_close(conv(x, context()), expected)


def test_a_convolution_of_an_image_goes_over_rows_and_columns():
    conv = mixer("convolution", mask=NoMask(causal=False), bias=True, grid=(4, 5), size=3)
    x = normal(2, 20, D)
    expected = conv.bias.expand(2, 20, D).clone()
    for row, column, a, b in product(range(4), range(5), (-1, 0, 1), (-1, 0, 1)):
        if 0 <= row + a < 4 and 0 <= column + b < 5:
            seen = x[:, (row + a) * 5 + column + b]
            expected[:, row * 5 + column] += conv.weight[:, 0, a + 1, b + 1] * seen
    assert_close(conv(x, context()), expected)


def test_a_convolution_with_a_cache_reads_the_padding_of_its_own_tokens():
    conv, x, cache = mixer("convolution", bias=True), normal(2, 6, D), Cache()
    keep = torch.tensor([[False, False, True, True, True, True], [True] * 4 + [False, True]])
    first = conv(x[:, :2], context(keep=keep[:, :2], cache=cache))
    rest = conv(x[:, 2:], context(keep=keep, cache=cache, start=2))
    assert_close(torch.cat([first, rest], 1), conv(x, context(keep=keep)))


def test_fixed_weights_have_no_more_positions_than_in_training():
    fixed = mixer("fixed")
    with pytest.raises(UserError, match="weights for the 37 positions it was trained with"):
        fixed(normal(1, N + 1, D), context())


def test_initial_values_keep_the_size_of_what_is_read():
    """Fixed weights sum up to the size of a value; a convolution is as much smaller than what it
    reads as the output map of an attention is."""
    torch.manual_seed(0)
    x = torch.randn(1, 64, 128)
    here = place(128, 4, 64, std=0.05, out_std=0.01)
    fixed = part("model.mixer", "fixed")(here)
    assert fixed.weight.std().item() == pytest.approx(64**-0.5, rel=0.05)
    for depthwise in (True, False):
        made = part("model.mixer", "convolution", depthwise=depthwise)(here)
        y = made(x, context())[:, 8:-8]
        assert y.std().item() == pytest.approx(0.2, rel=0.1)


# With a linear recurrence


def by_loop(q, k, v, g, beta=None):
    """One head, token by token: i k, i k, i v, i #k, i -> i v."""
    state, read = torch.zeros(k.shape[1], v.shape[1], dtype=v.dtype), []
    for i in range(len(v)):
        state = torch.diag(g[i].exp().expand(k.shape[1])) @ state
        new = v[i] if beta is None else beta[i] * (v[i] - state.T @ k[i])
        state = state + torch.outer(k[i], new)
        read.append(state.T @ q[i])
    return torch.stack(read)


@pytest.mark.parametrize("chunk", [1, 8, 64])
@pytest.mark.parametrize("kind", ["sum", "by channel", "delta"])
def test_chunks_are_the_recurrence(kind, chunk):
    q, k, v = (normal(B, H, N, w, seed=n).requires_grad_() for n, w in enumerate((K, K, V)))
    g = -2 * normal(B, H, N, K if kind == "by channel" else 1, seed=4).abs()
    beta = normal(B, H, N, seed=3).sigmoid() if kind == "delta" else None

    def run(part, **more):
        own = {} if beta is None else {"beta": beta[:, :, part]}
        return recurrence(*(x[:, :, part] for x in (q, k, v, g)), **own, **more)

    y, state = run(slice(None), chunk=chunk)
    heads = [
        by_loop(*(x[b, h] for x in (q, k, v, g)), None if beta is None else beta[b, h])
        for b in range(B)
        for h in range(H)
    ]
    expected = torch.stack(heads).unflatten(0, (B, H))
    assert_close(y, expected)
    mine = torch.autograd.grad(y.sin().sum(), (q, k, v), retain_graph=True)
    assert_close(mine, torch.autograd.grad(expected.sin().sum(), (q, k, v)))
    first, kept = run(slice(20))
    rest, last = run(slice(20, None), state=kept)
    assert_close((torch.cat([first, rest], 2), last), (y, state))


def test_no_decay_overflows():
    """A decay of exp(-100) each token: the exponents of a chunk differ by thousands."""
    q, k, v = (normal(1, 1, 64, K).float() for _ in range(3))
    y, state = recurrence(q, k, v, torch.full((1, 1, 64, K), -100.0))
    assert_close(y, (q * k).sum(-1, keepdim=True) * v)
    assert state.isfinite().all()


def near(linear, conv, x):
    """A map, a causal convolution channel by channel, silu; of one sequence."""
    y = x @ linear.weight.T
    if conv is None:
        return y
    past = F.pad(y.T, (conv.size - 1, 0))
    return F.silu(F.conv1d(past, conv.weight, groups=len(past)).T)


def rms(x, weight):
    return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight


def paper(made, name, x):
    """The layer of the paper for one sequence, head by head."""
    q, k, v = (
        near(getattr(made, n), getattr(made, f"{n}_conv"), x) for n in ("query", "key", "value")
    )
    read = []
    for h in range(H):

        def of(t, h=h):
            return t.chunk(H, dim=-1)[h]

        qh, kh, vh, beta = of(q), of(k), of(v), None
        g = torch.zeros(len(x), 1, dtype=x.dtype)
        if name == "retention":
            g = g + math.log(1 - 2.0 ** (-5 - h))
        if name == "gla":
            low = x @ made.decay[0].weight.T @ made.decay[1].weight.T + made.decay[1].bias
            g = of(low.sigmoid() ** (1 / 16)).log()
        if name in ("delta", "gated_delta"):
            qh, kh = (t / t.norm(dim=-1, keepdim=True) for t in (qh, kh))
            beta = (x @ made.beta.weight[h]).sigmoid()
        if name in ("gated_delta", "mamba2"):
            dt = (1 + (x @ made.decay.linear.weight[h] + made.decay.bias[h]).exp()).log()
            g = (-made.decay.rate[h].exp() * dt)[:, None]
        if name == "mamba2":
            y = by_loop(q, k, dt[:, None] * vh, g) + made.skip.weight[h] * vh
        else:
            y = by_loop(qh / qh.shape[1] ** 0.5, kh, vh, g, beta)
        read.append(y if name == "mamba2" else rms(y, made.norm.weight))
    y = torch.cat(read, dim=-1)
    gate = None if made.gate is None else F.silu(x @ made.gate.weight.T)
    if name == "mamba2":
        return rms(y * gate, made.norm.weight) @ made.out.weight.T
    return (y if gate is None else y * gate) @ made.out.weight.T


@pytest.mark.parametrize("name", RECURRENT)
def test_a_mixer_is_its_paper(name):
    made, x = mixer(name), normal(B, N, D)
    y = made(x, context())
    assert_close(y, torch.stack([paper(made, name, row) for row in x]))
    assert_close(made(x, context(position=2)), y[:, 2:3])


def test_retention_rotates_queries_and_keys():
    made, x = mixer("retention", pos="rotary"), normal(B, N, D)
    pos = part("pos_enc", "rotary")(dim=D, heads=H, head_dim=D // H, length=N, depth=1)
    assert not torch.allclose(made(x, context(pos)), made(x, context()))
    assert_close(made(x, context(pos, start=5)), made(x, context(pos)))  # distances alone act


@pytest.mark.parametrize("name", RECURRENT)
def test_padding_is_not_read(name):
    """Between tokens by what has no convolution, which reads neighbors."""
    x = normal(1, 6, D)
    for marks in ("...xxxxxx", "..xxxxxx..", "xxxx...xx"):
        between = marks.startswith("x")
        if name == "mamba2" and between:
            continue
        own = {"short_conv": None} if "delta" in name and between else {}
        made, keep = mixer(name, **own), torch.tensor([[mark == "x" for mark in marks]])
        padded = normal(1, len(marks), D, seed=4)
        padded[keep] = x[0]
        assert_close(made(padded, context(keep=keep))[keep], made(x, context())[0])


def test_decays_start_where_mamba_starts_them():
    torch.manual_seed(0)
    g, dt = Decay(4, 5000, std=0.0)(torch.zeros(1, 1, 4))
    assert 0.0009 < dt.min() < dt.max() < 0.101
    assert dt.log().mean().item() == pytest.approx(math.log(0.01), abs=0.1)
    assert 1 <= (-g / dt).min() < (-g / dt).max() <= 16
