"""Normalizers: their formulas, and what they may see; test_draws.py has every kernel."""

from functools import partial

import pytest
import torch
from make_model import normal, options, part
from scipy.optimize import brentq
from torch.testing import assert_close

from ablate.random.draws import Source

made = partial(part, "model.normalizer")
NAMES = options("model.normalizer")
SUM_TO_ONE = [name for name in NAMES if name != "sigmoid"]
FIXED = [name for name in NAMES if name != "hard"]  # the same in training as in evaluation
SOURCE = Source(torch.tensor(5))
POWERS = {"sparsemax": 1, "entmax15": 2}


def sampled(normalizer, given):
    """As in training."""
    return normalizer(normalizer.perturb(given, SOURCE), training=True)


def scores(*shape, seed=1):
    return 2 * normal(*shape, seed=seed)


@pytest.mark.parametrize("name", NAMES)
def test_no_keys_have_no_weights(name):
    """A window that follows the query has none once it has left the source."""
    nothing = torch.empty(2, 3, 1, 0)
    for allowed in (None, torch.empty(2, 1, 1, 0, dtype=torch.bool)):
        assert made(name)(nothing, allowed, training=True).shape == nothing.shape


@pytest.mark.parametrize("name", POWERS)
def test_thresholds_are_roots(name):
    """Against a root that scipy finds: sum max(s / power - tau, 0)^power = 1."""
    power, given = POWERS[name], scores(40, 9)
    for row, weights in zip(given / power, made(name)(given), strict=True):

        def excess(tau, row=row):
            return float(((row - tau).clamp(min=0) ** power).sum()) - 1

        tau = brentq(excess, float(row.max()) - 2, float(row.max()), xtol=1e-14)
        assert_close(weights, (row - tau).clamp(min=0) ** power)
        assert (weights == 0).any()  # or the test would say little


@pytest.mark.parametrize("name", FIXED)
def test_gradients_are_those_of_small_differences(name):
    assert torch.autograd.gradcheck(made(name), [scores(3, 5).requires_grad_()])


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_only_what_is_seen_has_weight(name, training):
    given = scores(2, 3, 4, 6).requires_grad_()
    allowed = torch.rand(2, 1, 4, 6, generator=torch.Generator().manual_seed(0)) < 0.6
    allowed[0, 0, 1] = False  # a query that sees nothing
    weights = made(name)(given, allowed, training=training)
    assert not weights[~allowed.expand_as(weights)].any()
    assert (weights >= 0).all()
    if name in SUM_TO_ONE:
        assert_close(weights.sum(-1), allowed.any(-1).double().expand(2, 3, 4))
    if weights.requires_grad:  # the likeliest key has no gradient
        (weights * scores(2, 3, 4, 6, seed=2)).sum().backward()
        assert given.grad.isfinite().all()
        assert not given.grad[~allowed.expand_as(weights)].any()
    # As if the others were not there.
    if not training:
        seen = allowed[1, 0, 3]
        alone = made(name)(given[1, 2, 3].detach()[seen])
        assert_close(weights[1, 2, 3][seen].detach(), alone, check_dtype=False)


@pytest.mark.parametrize("name", NAMES)
def test_the_type_of_numbers_stays(name):
    allowed = torch.ones(4, 4, dtype=torch.bool).tril()
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        weights = made(name)(scores(2, 4, 4).to(dtype), allowed, training=True)
        assert weights.dtype == dtype
        assert weights.isfinite().all()


def test_hard_draws_from_the_softmax():
    given = torch.tensor([1.0, 0.0, -1.0, 2.0])
    draws = sampled(made("hard"), given.expand(1, 1, 40_000, 4))[0, 0]
    assert torch.equal(draws.round(), draws.round().clamp(0, 1))
    assert_close(draws, draws.round(), atol=1e-6, rtol=0)
    expected = given.softmax(-1)
    spread = (expected * (1 - expected) / len(draws)).sqrt()
    assert ((draws.mean(0) - expected).abs() < 5 * spread).all()


def test_the_gradient_of_hard_is_that_of_the_noisy_softmax():
    hard = made("hard", temperature=0.1)
    given, loss = scores(3, 5).requires_grad_(), scores(3, 5, seed=4)
    (sampled(hard, given[None, None])[0, 0] * loss).sum().backward()
    noise = hard.perturb(torch.zeros(1, 1, 3, 5).double(), SOURCE)[0, 0]
    again = given.detach().requires_grad_()
    (((again + noise) / 0.1).softmax(-1) * loss).sum().backward()
    assert_close(given.grad, again.grad, rtol=1e-14, atol=1e-14)
