"""Score functions: each against its formula in loops, and what must hold for all of them."""

import math
import warnings
from functools import partial
from itertools import product

import pytest
import torch
from make_model import normal, part, random_parts, scores
from torch.nn.functional import leaky_relu
from torch.testing import assert_close

from ablate.errors import UserError
from ablate.model.attention.additive import Additive
from ablate.model.attention.cosine import LARGEST, START, Cosine
from ablate.model.attention.dot import Dot
from ablate.model.attention.gat import GAT
from ablate.model.attention.gatv2 import GATv2
from ablate.model.attention.general import General
from ablate.model.attention.location import Location
from ablate.model.attention.scaled_dot import ScaledDot

B, H, I, J, K = 2, 3, 5, 7, 4  # noqa: E741
SIZES = {"heads": H, "query_dim": K, "key_dim": K, "length": J}


def inputs(score):
    widths = (I, score.query_dim * score.query), (J, score.key_dim * score.key)
    return [normal(B, H, *size, seed=n).requires_grad_() for n, size in enumerate(widths)]


def hidden(score, q, k, h):
    return q + k if score.w is None else q @ score.w[h] + k @ score.u[h]


# The score of one query and the key at j, in head h.
FORMULAS = {
    "scaled_dot": lambda s, q, k, h, j: q @ k / math.sqrt(K),
    "dot": lambda s, q, k, h, j: q @ k,
    "general": lambda s, q, k, h, j: q @ s.weight[h] @ k,
    "additive": lambda s, q, k, h, j: s.v[h] @ hidden(s, q, k, h).tanh(),
    "gat": lambda s, q, k, h, j: leaky_relu(q @ s.a[h, :, 0] + k @ s.b[h, :, 0], 0.2),
    "gatv2": lambda s, q, k, h, j: s.v[h] @ leaky_relu(hidden(s, q, k, h), 0.2),
    "cosine": lambda s, q, k, h, j: s.log_t[h].exp() * q @ k / (q.norm() * k.norm()),
    "cosine_fixed": lambda s, q, k, h, j: 15.36 * q @ k / (q.norm() * k.norm()),
    "cosine_weighted": lambda s, q, k, h, j: (
        math.sqrt(K) * (s.scale().view(H, K)[h] ** 2 * q) @ k / (q.norm() * k.norm())
    ),
    "location": lambda s, q, k, h, j: q @ s.table[h, j],
    "uniform": lambda s, q, k, h, j: torch.zeros(()).double(),
}
SIZES_APART = SIZES | {"key_dim": 6}
CASES = {
    **{name: (name, SIZES) for name in scores()},
    **{f"{name}, widths apart": (name, SIZES_APART) for name in ("general", "gat")},
    **{f"{name}, hidden": (name, SIZES_APART | {"hidden": 3}) for name in ("additive", "gatv2")},
    "location, longer table": ("location", SIZES | {"max_length": J + 2}),
}


def made(case):
    name, keys = CASES[case]
    score = random_parts(part("model.attention", name)(**keys), std=1.0)
    return score, *inputs(score)


@pytest.mark.parametrize("case", CASES)
def test_forward_is_the_formula(case):
    score, q, k = made(case)
    expected = torch.empty(B, H, I, J).double()
    for b, h, i, j in product(range(B), range(H), range(I), range(J)):
        expected[b, h, i, j] = FORMULAS[CASES[case][0]](score, q[b, h, i], k[b, h, j], h, j)
    assert_close(score(q, k), expected, atol=1e-12, rtol=1e-12)


def test_initial_values_are_the_published_ones():
    torch.manual_seed(0)
    sizes = {"heads": 4, "query_dim": 50, "key_dim": 50, "length": 60}
    for drawn in (General(**sizes).weight, Location(max_length=None, **sizes).table):
        assert drawn.abs().max() <= 0.1
        assert drawn.std().item() == pytest.approx(0.1 / math.sqrt(3), rel=0.05)
    additive = Additive(hidden=40, **sizes)
    assert not additive.v.any()
    for matrix in (additive.w, additive.u):
        assert matrix.std().item() == pytest.approx(0.001, rel=0.05)
    gat, gatv2 = GAT(**sizes), GATv2(hidden=40, **sizes)
    for parameter, fans in ((gat.a, 101), (gat.b, 101), (gatv2.v, 41), (gatv2.w, 90)):
        assert parameter.abs().max() <= (6 / fans) ** 0.5
        assert parameter.std().item() == pytest.approx((2 / fans) ** 0.5, rel=0.08)
    assert Cosine(**sizes).sharpness().flatten().tolist() == pytest.approx([START] * 4)


def test_cosine_of_zero_vectors_is_zero_with_finite_gradients():
    score = Cosine(**SIZES).double()
    q, k = inputs(score)
    with torch.no_grad():
        q[0, 0, 0] = 0
        k[0, 0, 1] = 0
    out = score(q, k)
    out.square().sum().backward()
    assert not out[0, 0, 0].any()
    assert not out[0, 0, :, 1].any()
    assert all(x.grad.isfinite().all() for x in (q, k, score.log_t))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_cosine_is_lowered_in_float32_and_leaves_what_it_is_given_alone(dtype):
    """Against autograd in float64 on the same numbers; a pack has a derivative for each run."""
    score = Cosine(**SIZES)
    score.forward = lambda x: score.lower(x, x)[0]  # the queries that a kernel sees
    given = torch.stack([x.detach().to(dtype)[:, :, :I] for x in inputs(score)])
    upstream = normal(*given.shape, seed=3).float()
    before = given.clone(), upstream.clone()

    def weighed(log_t, x, upstream):
        lowered = torch.func.functional_call(score, {"log_t": log_t}, (x,))
        assert lowered.dtype == torch.float32
        return (lowered * upstream).sum()

    log_t = torch.tensor([[0.0] * H, [math.log(2 * LARGEST)] * H])
    gradients = torch.func.grad(weighed, argnums=(0, 1))
    with warnings.catch_warnings(action="error"):  # where torch has no rule for a pack, it warns
        of_runs = torch.func.vmap(gradients)(log_t, given, upstream)
    assert all(map(torch.equal, before, (given, upstream)))
    fine = 1e-5 if dtype == torch.float32 else 2**-8  # rounded once, at the end
    for run in range(2):
        t, x = log_t[run].double().requires_grad_(), given[run].double().requires_grad_()
        sharp = t.clamp(max=math.log(LARGEST)).exp()[:, None, None]
        exact = sharp * x / x.square().sum(-1, keepdim=True).sqrt()
        expected = torch.autograd.grad((exact * upstream[run]).sum(), (t, x))
        one = gradients(log_t[run], given[run], upstream[run])
        for found in (one, [x[run] for x in of_runs]):
            for mine, theirs, near in zip(found, expected, (1e-5, fine), strict=True):
                assert_close(mine.double(), theirs, atol=1e-3, rtol=near)


@pytest.mark.parametrize("size", [1e-4, 300.0])
def test_cosine_holds_in_half_precision(size):
    score = Cosine(**SIZES)
    q, k = (x.detach().float() for x in inputs(score))
    half = score((q * size).half(), (k * size).half())
    assert half.dtype == torch.float16
    assert_close(half.float(), score(q, k), atol=0.03, rtol=0.01)


@pytest.mark.parametrize(
    ("make", "sizes", "message"),
    [
        *((make, SIZES_APART, "same width, here 4 and 6") for make in (Dot, Cosine)),
        (ScaledDot, SIZES_APART, "4 and 6; .*=general"),
        (partial(Additive, hidden=None), SIZES_APART, r"=additive .* 4 and 6; .*\.hidden set"),
        (partial(Location, max_length=J - 1), SIZES, rf"max_length={J - 1} .*at least {J}"),
    ],
)  # fmt: skip
def test_a_refusal_names_the_slot(make, sizes, message):
    for slot in ("model.attention", "model.cross_attention"):
        with pytest.raises(UserError, match=rf"^{slot}.*{message}"):
            make(slot=slot, **sizes)


def test_location_refuses_what_its_table_has_no_room_for():
    score = Location(max_length=J + 1, **SIZES)
    q, fits = torch.randn(B, H, I, K), torch.empty(B, H, J + 1, 0)
    assert_close(score(q, fits), q @ score.table.mT)
    for call in (score.forward, score.lower):
        with pytest.raises(UserError, match=rf"model\.attention\.max_length={J + 2} or more"):
            call(q, torch.empty(B, H, J + 2, 0))
