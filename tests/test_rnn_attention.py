"""Attention of an RNN decoder: against numpy, with padding, windows by hand, every kernel."""

import itertools

import pytest
import torch
from make_model import kernel, normal, part, random_parts, scores
from torch.testing import assert_close

from ablate.errors import UserError
from ablate.model.layers.multi_head import recording
from ablate.model.normalizer.softmax import Softmax
from ablate.model.recurrent.rnn_attention import Memory, make_context

B, I, J, D = 3, 7, 6, 8  # noqa: E741
LENGTHS = [6, 2, 4]
SIZE = 2
WINDOWS = ["none", "local_m", "local_p"]
pytestmark = pytest.mark.usefixtures("no_compiler")


def made(score="additive", *, window="none", run="reference"):
    size = {} if window == "none" else {"size": SIZE}
    chunks = {"chunk": 3, "compile": False} if run == "chunked" else {}
    attention, local = part("model.attention", score), part("model.window", window, **size)
    own = {"normalizer": Softmax(), "kernel": kernel(run, **chunks), "length": J}
    return random_parts(make_context(D, attention=attention, window=local, **own))


def memory(seed=1):
    keep = torch.arange(J) < torch.tensor(LENGTHS)[:, None]
    return Memory(states=normal(B, J, D, seed=seed), keep=keep, last=normal(B, D, seed=3))


def attend(attention, query, read, start=0):
    return attention(query, attention.prepare(read), start)


def expected_weights(attention, query, read, window, b, i, step):
    """Luong's section 3.2 for one step of a dot product."""
    length, h = LENGTHS[b], query[b, i]
    places, center, factors = torch.arange(length), torch.tensor(step), torch.ones(length)
    if window == "local_p":
        p = dict(attention.window.named_parameters())
        center = length * torch.sigmoid(p["v"] @ torch.tanh(h @ p["w"]))
        factors = torch.exp(-((places - center) ** 2) / (2 * (SIZE / 2) ** 2))
    near = (places - center).abs() <= SIZE
    weights = torch.zeros(J, dtype=torch.float64)
    weights[:length][near] = (read.states[b, :length] @ h)[near].softmax(0) * factors[near]
    return weights


@torch.no_grad()
@pytest.mark.parametrize(
    ("window", "start", "run"),
    [
        ("local_m", 0, "reference"),
        *(("local_m", 3, run) for run in ("sdpa", "chunked")),
        ("local_p", 0, "chunked"),
    ],
)
def test_windows_are_luongs(window, start, run):
    attention, query, read = made("dot", window=window, run=run), normal(B, I, D, seed=5), memory()
    with recording(attention) as recorded:
        context = attend(attention, query, read, start)
    for b, i in itertools.product(range(B), range(I)):
        expected = expected_weights(attention, query, read, window, b, i, i + start)
        assert_close(recorded[0][0][b, 0, i], expected)
        assert_close(context[b, i], expected @ read.states[b])
    # A short source leaves late steps of local-m without anything to see.
    assert (context[1, -1] == 0).all() == (window == "local_m")


def test_half_precision_knows_where_it_looks_in_a_long_source():
    """In bfloat16 itself 301 would be 300 or 302."""
    window = part("model.window", "local_p", size=SIZE)(dim=D).bfloat16()
    torch.nn.init.zeros_(window.v)
    query, keep = torch.ones(1, 1, D, dtype=torch.bfloat16), torch.ones(1, 602, dtype=torch.bool)
    factors = window.factors(query, keep)[0, 0, 0]
    assert factors.dtype == query.dtype
    assert factors.nonzero()[:, 0].tolist() == list(range(301 - SIZE, 301 + SIZE + 1))
    assert factors[301] == 1


@pytest.mark.ci
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("score", scores())
def test_every_kernel_computes_the_same_or_is_refused(score, window):
    reference = made(score, window=window)
    read = memory()
    query, states = normal(B, I, D, seed=5).requires_grad_(), read.states.requires_grad_()

    def results(attention):
        context = attend(attention, query, read)
        inputs, loss = [query, states, *attention.parameters()], context.square().sum()
        return [context, *torch.autograd.grad(loss, inputs, materialize_grads=True)]

    expected = results(reference)
    for run in ("auto", "chunked", "sdpa"):
        if run == "sdpa" and (window == "local_p" or "dot_product" not in reference.score.needs):
            with pytest.raises(UserError, match="kernel=sdpa does not support"):
                made(score, window=window, run=run)
        else:
            assert_close(results(made(score, window=window, run=run)), expected)


def test_no_attention_is_the_last_state_at_every_step():
    context, read = made("none", run="auto"), memory()
    assert not list(context.parameters())
    seen = context(normal(B, I, D), context.prepare(read), 4)
    assert torch.equal(seen, read.last[:, None].expand(-1, I, -1))
