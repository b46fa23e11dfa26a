"""Score functions: each against its formula in loops, and what must hold for all of them."""

import math
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from make_model import scores
from torch import Tensor

from ablate.errors import UserError
from ablate.model.attention import Score
from ablate.model.attention.additive import Additive
from ablate.model.attention.cosine import LARGEST, START, Cosine
from ablate.model.attention.dot import Dot
from ablate.model.attention.gat import GAT
from ablate.model.attention.gatv2 import GATv2
from ablate.model.attention.general import General
from ablate.model.attention.location import Location
from ablate.model.attention.scaled_dot import ScaledDot
from ablate.model.attention.uniform import Uniform

CONF = Path(__file__).parents[1] / "conf"
NAMES = scores()
B, H, I, J, K = 3, 5, 7, 9, 4  # noqa: E741
SIZES = {"heads": H, "query_dim": K, "key_dim": K, "length": J}


def build(name: str) -> Score:
    """The score as its YAML describes it, in float64 and away from its initial zeros."""
    with initialize_config_dir(str(CONF), version_base="1.3"):
        node = compose(overrides=[f"+model.attention={name}"]).model.attention
    return randomised(instantiate(node)(**SIZES))


def randomised(score: Score) -> Score:
    """In float64 and away from initial zeros, which would hide a wrong formula."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in score.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return score.double()


def inputs(score: Score, *, query_dim: int = K, key_dim: int = K) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    widths = query_dim * score.query, key_dim * score.key
    q, k = (
        torch.randn(B, H, n, width, generator=generator, dtype=torch.float64, requires_grad=True)
        for n, width in zip((I, J), widths, strict=True)
    )
    return q, k


def inner(x: list[float], y: list[float]) -> float:
    return math.fsum(a * b for a, b in zip(x, y, strict=True))


def apply(matrix: Tensor, x: list[float]) -> list[float]:
    """x W by hand."""
    return [inner(x, column) for column in matrix.T.tolist()]


def general(score: Score, q: list[float], k: list[float], h: int, j: int) -> float:
    assert isinstance(score, General)
    weight = score.weight[h].tolist()
    return sum(q[a] * weight[a][c] * k[c] for a in range(len(q)) for c in range(len(k)))


def additive(score: Score, q: list[float], k: list[float], h: int, j: int) -> float:
    assert isinstance(score, Additive)
    if score.w is not None and score.u is not None:
        q, k = apply(score.w[h], q), apply(score.u[h], k)
    return sum(v * math.tanh(a + c) for v, a, c in zip(score.v[h].tolist(), q, k, strict=True))


def leaky(x: float) -> float:
    return x if x > 0 else 0.2 * x


def gat(score: Score, q: list[float], k: list[float], h: int, j: int) -> float:
    assert isinstance(score, GAT)
    return leaky(inner(q, score.a[h, :, 0].tolist()) + inner(k, score.b[h, :, 0].tolist()))


def gatv2(score: Score, q: list[float], k: list[float], h: int, j: int) -> float:
    assert isinstance(score, GATv2)
    if score.w is not None and score.u is not None:
        q, k = apply(score.w[h], q), apply(score.u[h], k)
    return sum(v * leaky(a + c) for v, a, c in zip(score.v[h].tolist(), q, k, strict=True))


def cosine(score: Score, q: list[float], k: list[float], h: int, j: int) -> float:
    assert isinstance(score, Cosine)
    return math.exp(score.log_t[h].item()) * inner(q, k) / (math.hypot(*q) * math.hypot(*k))


def location(score: Score, q: list[float], k: list[float], h: int, j: int) -> float:
    assert isinstance(score, Location)
    return inner(q, score.table[h, j].tolist())


SIZES_APART = SIZES | {"key_dim": 6}
CASES: dict[str, tuple[Score, Callable[[Score, list[float], list[float], int, int], float]]] = {
    "scaled_dot": (ScaledDot(**SIZES), lambda s, q, k, h, j: inner(q, k) / math.sqrt(K)),
    "dot": (Dot(**SIZES), lambda s, q, k, h, j: inner(q, k)),
    "general": (General(**SIZES), general),
    "general, widths apart": (General(**SIZES_APART), general),
    "additive": (Additive(hidden=None, **SIZES), additive),
    "additive, hidden": (Additive(hidden=3, **SIZES_APART), additive),
    "gat": (GAT(**SIZES), gat),
    "gat, widths apart": (GAT(**SIZES_APART), gat),
    "gatv2": (GATv2(hidden=None, **SIZES), gatv2),
    "gatv2, hidden": (GATv2(hidden=3, **SIZES_APART), gatv2),
    "cosine": (Cosine(**SIZES), cosine),
    "location": (Location(max_length=None, **SIZES), location),
    "location, longer table": (Location(max_length=J + 2, **SIZES), location),
    "uniform": (Uniform(**SIZES), lambda s, q, k, h, j: 0.0),
}


@pytest.mark.parametrize("case", CASES)
def test_forward_is_the_formula(case: str) -> None:
    score, formula = CASES[case]
    randomised(score)
    q, k = inputs(score, query_dim=score.query_dim, key_dim=score.key_dim)
    expected = [
        [
            [[formula(score, q_i, k_j, h, j) for j, k_j in enumerate(keys)] for q_i in queries]
            for h, (queries, keys) in enumerate(zip(q_b, k_b, strict=True))
        ]
        for q_b, k_b in zip(q.tolist(), k.tolist(), strict=True)
    ]
    torch.testing.assert_close(
        score(q, k), torch.tensor(expected, dtype=torch.float64), atol=1e-12, rtol=1e-12
    )


@pytest.mark.parametrize("case", CASES)
def test_a_sum_is_forward(case: str) -> None:
    """For kernels: sum_d v_d f(q_id + k_jd)."""
    score = randomised(CASES[case][0])
    q, k = inputs(score, query_dim=score.query_dim, key_dim=score.key_dim)
    if not score.sums:
        with pytest.raises(NotImplementedError):
            score.summed(q, k)
        return
    q_, k_, v, slope = score.summed(q, score.keys(k))
    x = q_[:, :, :, None] + k_[:, :, None]
    y = x.tanh() if slope is None else torch.where(x > 0, x, slope * x)
    torch.testing.assert_close(torch.einsum("bhijd,hd->bhij", y, v), score(q, k))


def assert_lowers(score: Score) -> None:
    q, k = inputs(score, query_dim=score.query_dim, key_dim=score.key_dim)
    lowered = score.lower(q, k)
    assert (lowered is not None) == score.lowers
    if lowered is None:
        return
    direct = score(q, k)
    via = lowered[2] * lowered[0] @ lowered[1].mT
    torch.testing.assert_close(via, direct, atol=1e-12, rtol=1e-12)
    leaves = [q, k, *score.parameters()]
    upstream = torch.randn(
        direct.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64
    )
    if not direct.requires_grad:
        return
    expected = torch.autograd.grad(direct, leaves, upstream, allow_unused=True)
    for ours, theirs in zip(
        torch.autograd.grad(via, leaves, upstream, allow_unused=True), expected, strict=True
    ):
        assert (ours is None) == (theirs is None)
        if ours is not None:
            torch.testing.assert_close(ours, theirs, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_lower_is_forward_in_values_and_gradients(name: str) -> None:
    assert_lowers(build(name))


@pytest.mark.parametrize("case", CASES)
def test_lower_is_forward_with_other_keys_and_widths(case: str) -> None:
    assert_lowers(randomised(CASES[case][0]))


@pytest.mark.parametrize("name", NAMES)
def test_rows_batches_and_heads_are_independent(name: str) -> None:
    score = build(name)
    q, k = inputs(score)
    full = score(q, k)
    torch.testing.assert_close(score(q[:, :, 2:5], k), full[:, :, 2:5])
    torch.testing.assert_close(score(q[1:2], k[1:2]), full[1:2])
    other = q.detach().clone()
    other[:, 2] += 1
    changed = (score(other, k) != full).flatten(2).any(-1).any(0)
    assert not changed[[0, 1, 3, 4]].any()
    assert bool(changed[2]) == score.query


@pytest.mark.parametrize("name", NAMES)
def test_what_it_says_it_reads_is_what_it_reads(name: str) -> None:
    score = build(name)
    q, k = inputs(score)
    full = score(q, k)
    assert bool((score(q * 2 + 1, k) != full).any()) == score.query
    assert bool((score(q, k * 2 + 1) != full).any()) == score.key


@pytest.mark.parametrize("name", NAMES)
def test_every_parameter_gets_a_gradient(name: str) -> None:
    score = build(name)
    out = score(*inputs(score))
    if not list(score.parameters()):
        return
    (out * torch.arange(out.numel()).view_as(out)).sum().backward()
    for parameter in score.parameters():
        assert parameter.grad is not None
        assert parameter.grad.abs().sum() > 0


@pytest.mark.parametrize("name", NAMES)
def test_reset_depends_on_the_seed_alone(name: str) -> None:
    score = build(name)
    draws = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        score.reset_parameters()
        draws.append([p.detach().clone() for p in score.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(draws[0], draws[1], strict=True))
    random = [p.unique().numel() > 1 for p in draws[0]]
    assert [not torch.equal(a, b) for a, b in zip(draws[0], draws[2], strict=True)] == random


def test_initial_values_are_the_published_ones() -> None:
    sizes = {"heads": 4, "query_dim": 50, "key_dim": 50, "length": 60}
    for drawn in (General(**sizes).weight, Location(max_length=None, **sizes).table):
        assert drawn.abs().max() <= 0.1
        assert drawn.std().item() == pytest.approx(0.1 / math.sqrt(3), rel=0.05)
    additive = Additive(hidden=40, **sizes)
    assert not additive.v.any()
    for matrix in (additive.w, additive.u):
        assert matrix is not None
        assert matrix.std().item() == pytest.approx(0.001, rel=0.05)
    gat, gatv2 = GAT(**sizes), GATv2(hidden=40, **sizes)
    for parameter, fans in ((gat.a, 101), (gat.b, 101), (gatv2.v, 41), (gatv2.w, 90)):
        assert parameter is not None
        assert parameter.abs().max() <= (6 / fans) ** 0.5
        assert parameter.std().item() == pytest.approx((2 / fans) ** 0.5, rel=0.08)
    assert Cosine(**sizes).sharpness().flatten().tolist() == pytest.approx([START] * 4)


def test_cosine_is_blind_to_length_and_its_sharpness_is_bounded() -> None:
    score = Cosine(**SIZES).double()
    q, k = inputs(score)
    torch.testing.assert_close(score(q * 7, k * 0.01), score(q, k))
    with torch.no_grad():
        score.log_t.fill_(50.0)
    assert score(q, q).max().item() == pytest.approx(LARGEST)


def test_cosine_of_zero_vectors_is_zero_with_finite_gradients() -> None:
    score = Cosine(**SIZES).double()
    q, k = inputs(score)
    with torch.no_grad():
        q[0, 0, 0] = 0
        k[0, 0, 1] = 0
    out = score(q, k)
    out.square().sum().backward()
    assert not out[0, 0, 0].any()
    assert not out[0, 0, :, 1].any()
    for x in (q, k, score.log_t):
        assert x.grad is not None
        assert x.grad.isfinite().all()


def test_the_gradient_of_cosine_is_that_of_its_values() -> None:
    """By small differences (gradcheck), of queries, keys and sharpness."""
    score = Cosine(**SIZES).double()

    def values(q: Tensor, k: Tensor, log_t: Tensor) -> Any:
        return torch.func.functional_call(score, {"log_t": log_t}, (q, k))

    torch.autograd.gradcheck(values, (*inputs(score), score.log_t))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_cosine_is_lowered_in_float32_and_leaves_what_it_is_given_alone(dtype: torch.dtype) -> None:
    """Against autograd in float64 on the same numbers; a pack has a derivative for each run."""
    score = Cosine(**SIZES)
    given = torch.stack([x.detach().to(dtype)[:, :, :I] for x in inputs(score)])
    upstream = torch.randn(given.shape, generator=torch.Generator().manual_seed(3))
    before = given.clone(), upstream.clone()

    def weighed(log_t: Tensor, x: Tensor, upstream: Tensor) -> Tensor:
        lowered = torch.func.functional_call(Lowering(score), {"score.log_t": log_t}, (x,))
        assert lowered.dtype == torch.float32
        return (lowered * upstream).sum()

    log_t = torch.tensor([[0.0] * H, [math.log(2 * LARGEST)] * H])
    with warnings.catch_warnings(action="error"):  # where torch has no rule for a pack, it warns
        of_runs = torch.func.vmap(torch.func.grad(weighed, argnums=(0, 1)))(log_t, given, upstream)
    assert all(torch.equal(*pair) for pair in zip(before, (given, upstream), strict=True))
    for run in range(2):
        t, x = log_t[run].double().requires_grad_(), given[run].double().requires_grad_()
        sharp = t.clamp(max=math.log(LARGEST)).exp()[:, None, None]
        exact = sharp * x / x.square().sum(-1, keepdim=True).sqrt()
        expected = torch.autograd.grad((exact * upstream[run]).sum(), (t, x))
        one = torch.func.grad(weighed, argnums=(0, 1))(log_t[run], given[run], upstream[run])
        for found in (one, [x[run] for x in of_runs]):
            torch.testing.assert_close(found[0].double(), expected[0], atol=1e-3, rtol=1e-5)
            fine = 1e-5 if dtype == torch.float32 else 2**-8  # rounded once, at the end
            torch.testing.assert_close(found[1].double(), expected[1], atol=1e-3, rtol=fine)


class Lowering(torch.nn.Module):
    """The queries that a kernel sees, in place of scores."""

    def __init__(self, score: Score) -> None:
        super().__init__()
        self.score = score

    def forward(self, x: Tensor) -> Tensor:
        lowered = self.score.lower(x, x)
        assert lowered is not None
        return lowered[0]


@pytest.mark.parametrize("size", [1e-4, 300.0])
def test_cosine_holds_in_half_precision(size: float) -> None:
    score = Cosine(**SIZES)
    q, k = (x.detach().float() for x in inputs(score))
    half = score((q * size).half(), (k * size).half())
    assert half.dtype == torch.float16
    torch.testing.assert_close(half.float(), score(q, k), atol=0.03, rtol=0.01)


@pytest.mark.parametrize("make", [ScaledDot, Dot, Cosine])
def test_unequal_widths_are_refused(make: type[Score]) -> None:
    with pytest.raises(UserError, match=r"one width, here they are 4 and 6 .*attention=general"):
        make(**SIZES_APART)


def test_additive_refusals() -> None:
    with pytest.raises(UserError, match=r"attention=additive .* 4 and 6 .*attention\.hidden set"):
        Additive(hidden=None, **SIZES_APART)
    for wrong in (0, -3, "wide", 2.5):
        with pytest.raises(UserError, match=r"model\.attention\.hidden="):
            Additive(hidden=wrong, **SIZES)  # type: ignore[arg-type]


def test_location_refuses_what_its_table_has_no_room_for() -> None:
    for wrong in (J - 1, 0, "long"):
        with pytest.raises(UserError, match=rf"max_length={wrong} .*at least {J}"):
            Location(max_length=wrong, **SIZES)  # type: ignore[arg-type]
    score = Location(max_length=J + 1, **SIZES)
    q, fits = torch.randn(B, H, I, K), torch.empty(B, H, J + 1, 0)
    assert score(q, fits).shape == (B, H, I, J + 1)
    for call in (score.forward, score.lower):
        with pytest.raises(UserError, match=rf"model\.attention\.max_length={J + 2} or more"):
            call(q, torch.empty(B, H, J + 2, 0))


@pytest.mark.parametrize(
    ("make", "sizes"),
    [
        (Dot, SIZES_APART),
        (partial(Additive, hidden=None), SIZES_APART),
        (partial(Additive, hidden=0), SIZES),
        (partial(Location, max_length=0), SIZES),
    ],
)
def test_a_refusal_names_the_slot(make: Callable[..., Score], sizes: dict[str, Any]) -> None:
    with pytest.raises(UserError) as caught:
        make(slot="model.cross_attention", **sizes)
    assert str(caught.value).startswith("model.cross_attention")
    assert "model.attention" not in str(caught.value)


def test_concat_is_additive() -> None:
    """Luong's v . tanh(W_a [q; k]), one matrix over both side by side."""
    score = randomised(Additive(hidden=3, **SIZES_APART))
    assert isinstance(score, Additive)
    assert score.w is not None
    assert score.u is not None
    q, k = inputs(score, key_dim=6)
    both = torch.cat(
        [q[:, :, :, None].expand(-1, -1, -1, J, -1), k[:, :, None].expand(-1, -1, I, -1, -1)], -1
    )
    side_by_side = torch.cat([score.w, score.u], dim=1)
    concat = (both @ side_by_side[:, None]).tanh() @ score.v[:, None, :, None]
    torch.testing.assert_close(concat.squeeze(-1), score(q, k))
