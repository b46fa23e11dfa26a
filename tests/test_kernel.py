"""Kernels: each computes what the reference computes, in float64, values and gradients."""

import itertools
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
import torch
from make_model import kernel, normal, options, part, random_parts, scores
from torch import Tensor
from torch.testing import assert_close

from ablate.errors import UserError
from ablate.kernel import Attend, Kernel, Parts
from ablate.kernel.auto import Auto
from ablate.kernel.reference import Reference
from ablate.kernel.sdpa import SDPA, SHORT
from ablate.model.attention import Score
from ablate.model.normalizer.softmax import Softmax
from ablate.pos_enc import PosEnc

B, H, K, LENGTH = 2, 3, 5, 7

SCORES = {name: {} for name in scores()} | {
    "additive, hidden": {"hidden": 4},
    "location, longer": {"max_length": LENGTH + 3},
}
MASKS: dict[str, dict[str, Any]] = {
    name: {"size": 3} if name in ("window", "prefix") else {}
    for name in options("model.mask")
    if name != "neighbours"  # which is no matter of positions: test_graph.py
}
KERNELS: dict[str, Kernel] = {
    "sdpa": kernel("sdpa"),
    "chunks of 3": kernel("chunked", chunk=3, compile=False),
}
# Queries, keys and the position of the first query.
SHAPES = {"square": (LENGTH, LENGTH, 0), "cached": (3, LENGTH, LENGTH - 3), "cross": (7, 4, 0)}
PADDING = ("none", "some", "empty rows")
pytestmark = pytest.mark.usefixtures("no_compiler")


def acts_in_kernel(name):
    """Whether a kernel meets this encoding; the others act before it and are the same as none."""
    made = part("pos_enc", name).func
    return made.bias is not PosEnc.bias or made.values is not PosEnc.values


ENCODINGS: dict[str, dict[str, Any]] = {
    name: {}
    for name in options("pos_enc")
    # What needs an image: test_local_attention.py.
    if name == "none" or (acts_in_kernel(name) and not name.endswith("_2d"))
} | {"relative, keys": {"values": False}, "relative, values": {"keys": False}}


def make_score(name: str) -> Score:
    made = part("model.attention", name.split(",")[0], **SCORES[name])
    return random_parts(made(heads=H, query_dim=K, key_dim=K, length=LENGTH), seed=3, std=1.0)


def make_pos(name: str, *, causal: bool = False) -> PosEnc:
    sizes = {"dim": H * K, "heads": H, "head_dim": K, "length": LENGTH, "depth": 2}
    made = part("pos_enc", name.split(",")[0], **ENCODINGS[name])
    return random_parts(made(**sizes, grid=None, extra=0, causal=causal), seed=4, std=1.0)


def make(
    score: str,
    pos: str = "none",
    mask: str = "none",
    *,
    shape: str = "square",
    padding: str = "none",
) -> Attend:
    queries, keys, start = SHAPES[shape]
    structure = part("model.mask", mask, **MASKS[mask])(causal=True)
    reads = make_score(score)
    sizes = (queries, K * reads.query), (keys, K * reads.key), (keys, K)
    q, k, v = (normal(B, H, *size, seed=n).requires_grad_() for n, size in enumerate(sizes))
    return Attend(
        q=q, k=k, v=v, score=reads, normalizer=Softmax(), mask=structure, layer=1, start=start,
        pos=make_pos(pos, causal=not structure.look_ahead), keep=keep(padding, keys),
    )  # fmt: skip


def keep(padding, keys):
    """Some: in front and within the first example. Empty rows: and all of the second."""
    if padding == "none":
        return None
    real = torch.ones(B, keys, dtype=torch.bool)
    real[0, [0, 3]] = False
    if padding == "empty rows":
        real[1] = False
    return real


def results(run: Kernel, attend: Attend) -> list[Tensor]:
    """The context, and the gradients of queries, keys, values and all parameters."""
    context = run(attend)
    weighed = (context * normal(*context.shape, seed=9).to(context)).sum()
    inputs = [attend.q, attend.k, attend.v, *attend.score.parameters(), *attend.pos.parameters()]
    gradients = torch.autograd.grad(weighed, inputs, allow_unused=True, materialize_grads=True)
    return [context.detach(), *gradients]


def assert_as_reference(attend: Attend, *runs: Kernel) -> None:
    """In the context and every gradient."""
    expected = results(Reference(), attend)
    assert all(x.isfinite().all() for x in expected)
    for run in runs:
        assert_close(results(run, attend), expected, atol=1e-11, rtol=1e-9)


def resolved(score, pos):
    """Every kernel that accepts the parts."""
    for each in KERNELS.values():
        if each.refuses(Parts(make_score(score), make_pos(pos))) is None:
            yield each.resolve(Parts(make_score(score), make_pos(pos)))


def combined():
    """Each score and encoding with one mask by default, and with all of them in slow tests.

    A bias that reads the query needs a score that does: the rest is refused, test_pairs.py.
    """
    pairs = [
        (score, pos)
        for score, pos in itertools.product(SCORES, ENCODINGS)
        if make_score(score).query or not make_pos(pos).reads_query
    ]
    return [
        pytest.param(*pair, mask, marks=[] if m == n % len(MASKS) else pytest.mark.slow)
        for n, pair in enumerate(pairs)
        for m, mask in enumerate(MASKS)
    ]


@pytest.mark.parametrize(("score", "pos", "mask"), combined())
def test_every_kernel_equals_the_reference(score, pos, mask):
    """Every shape and every padding; between them the masks have every pair of the two."""
    kernels = list(resolved(score, pos))
    assert len(kernels) >= len(KERNELS) - 1  # sdpa alone may refuse
    turn = list(MASKS).index(mask) % len(PADDING)
    for shape, padding in zip(SHAPES, PADDING[turn:] + PADDING[:turn], strict=True):
        attend = make(score, pos, mask, shape=shape, padding=padding)
        assert_as_reference(attend, *kernels)


@pytest.mark.parametrize(("shape", "padding"), [("square", "some"), ("cached", "none")])
@pytest.mark.parametrize("name", KERNELS)
def test_a_causal_mask_that_torch_does_not_know(name, shape, padding):
    """Without a bias torch masks the future itself: of all queries, and without padding."""
    assert_as_reference(make("dot", mask="causal", shape=shape, padding=padding), KERNELS[name])


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("mask", MASKS)
def test_the_reference_is_the_formula(mask, shape):
    """One query at a time: a softmax over the keys it may see, which are listed by hand."""
    attend = make("scaled_dot", "alibi", mask, shape=shape, padding="some")
    context = Reference()(attend)
    may_see = {
        "none": lambda i, j: True,
        "causal": lambda i, j: j <= i,
        "window": lambda i, j: i - 3 < j <= i,
        "prefix": lambda i, j: j <= i or j < 3,
        "source": lambda i, j: j <= i,  # here without a source
    }[mask]
    slopes = [2.0**-4, 2.0**-8, 2.0**-2]  # three heads: those of two, then the first of four
    queries, keys, start = SHAPES[shape]
    for b, h, n in itertools.product(range(B), range(H), range(queries)):
        i = n + start
        seen = [j for j in range(keys) if may_see(i, j) and attend.keep[b, j]]
        if not seen:
            assert not context[b, h, n].any()
            continue
        scores = [
            attend.q[b, h, n] @ attend.k[b, h, j] / K**0.5 - slopes[h] * abs(i - j) for j in seen
        ]
        expected = torch.stack(scores).softmax(0) @ attend.v[b, h, seen]
        assert_close(context[b, h, n], expected)


def test_the_reference_adds_positions_to_keys_and_values():
    """Shaw's equations 3 and 4: sum_j w_ij (v_j + c_ij) with scores q_i (k_j + a_ij) / sqrt(k)."""
    attend = make("scaled_dot", "relative", "causal")
    pos = attend.pos
    context = Reference()(attend)
    for b, h, i in itertools.product(range(B), range(H), range(LENGTH)):
        seen = torch.arange(i + 1)
        row = seen - i + pos.max_distance
        a, c = pos.key_tables[attend.layer][row], pos.value_tables[attend.layer][row]
        scores = (attend.k[b, h, seen] + a) @ attend.q[b, h, i] / K**0.5
        expected = scores.softmax(0) @ (attend.v[b, h, seen] + c)
        assert_close(context[b, h, i], expected)


@pytest.mark.parametrize("mask", MASKS)
def test_rows_that_see_nothing_give_zeros_and_no_gradients(mask):
    context, *gradients = results(Reference(), make("dot", "alibi", mask, padding="empty rows"))
    assert not context[1].any()
    assert context[0, :, 4].abs().min() > 0
    for gradient in gradients[:3]:
        assert not gradient[1].any()
        assert gradient[0].abs().max() > 0


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("pos", ENCODINGS)
def test_sdpa_refuses_what_it_cannot_compute(pos, score):
    parts = make_score(score), make_pos(pos)
    exact = parts[0].lower(normal(B, H, 2, K), normal(B, H, 2, K)) is not None
    if exact and not parts[1].value_term:
        assert isinstance(SDPA().resolve(Parts(*parts)), SDPA)
    else:
        with pytest.raises(UserError, match=r"kernel=sdpa cannot .*; use kernel=auto"):
            SDPA().resolve(Parts(*parts))


def test_auto_takes_the_fastest_that_is_exact():
    none, values = make_pos("none"), make_pos("relative")
    assert isinstance(Auto().resolve(Parts(make_score("cosine"), none)), SDPA)
    assert isinstance(Auto().resolve(Parts(make_score("cosine"), values)), Reference)
    additive = Auto().resolve(Parts(make_score("additive"), none))
    assert additive.may_compile  # whether it does depends on the size and on a compiler
    for score, may_compile in (("additive", True), ("dot", False)):
        found = kernel("chunked").resolve(Parts(make_score(score), none))
        assert found.may_compile == may_compile
        assert found.describe() == "chunked"  # so far


# What ran inside of SDPA, by torch's own rules on a CPU (sdp_utils_cpp.cpp).
BACKENDS = {
    "plain": (make("scaled_dot"), "flash"),
    "causal": (make("scaled_dot", mask="causal"), "flash"),
    "padding": (make("cosine", mask="window", padding="empty rows"), "flash"),
    "a fixed bias": (make("dot", "alibi"), "flash"),
    "a learned bias": (make("dot", "t5"), "math"),
}


@pytest.mark.parametrize("case", BACKENDS)
def test_sdpa_says_which_backend_ran(case):
    """The profiler saw the operation that it names."""
    attend, backend = BACKENDS[case]
    run = SDPA().resolve(Parts(attend.score, attend.pos))
    assert run.describe() == "sdpa"  # nothing so far
    with torch.profiler.profile() as seen:
        run(attend)
    assert run.describe() == f"sdpa ({backend})"
    names = {event.name for event in seen.events() or []}
    operations = {"flash": "_flash_attention_for_cpu", "math": "_attention_math"}
    for name, operation in operations.items():
        assert any(operation in one for one in names) == (name == backend)


def test_sdpa_tells_training_from_evaluation():
    attend = make("dot")
    run = SDPA().resolve(Parts(attend.score, attend.pos))
    run(attend)
    run(replace(attend, dropout=0.1, training=True, stream=torch.tensor(1)))
    assert run.describe() == "sdpa (training: reference, for dropout; evaluation: flash)"


@pytest.mark.parametrize("pos", ["none", "alibi"])
@pytest.mark.parametrize("mixed", [True, False])
def test_sdpa_is_computed_in_float32_where_bfloat16_is_slow(mixed, pos):
    """On a CPU, in training, for few keys: exactly that, rounded once; and said."""
    exact = make("dot", pos, "causal", padding="some")
    leaves = [x.detach().bfloat16().requires_grad_() for x in (exact.q, exact.k, exact.v)]
    q, k, v = leaves
    run = SDPA().resolve(Parts(exact.score, exact.pos))
    with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
        found = run(replace(exact, q=q, k=k, v=v, training=True))
    assert run.describe() == "sdpa (flash in float32)"
    expected = SDPA()(replace(exact, q=q.float(), k=k.float(), v=v.float())).bfloat16()
    assert found.dtype is torch.bfloat16
    assert torch.equal(found, expected)
    ours, theirs = (torch.autograd.grad(out.sum(), leaves) for out in (found, expected))
    assert all(map(torch.equal, ours, theirs))
    with torch.no_grad():
        run(replace(exact, q=q, k=k, v=v))
    assert run.describe() == "sdpa (training: flash in float32; evaluation: flash)"


def test_sdpa_in_float32_rounds_nothing_that_is_lowered():
    """Directions of a hundred times the length, rounded to bfloat16, would differ by tenths."""
    exact = make("cosine")
    with torch.no_grad():
        exact.score.log_t.fill_(5)
    q, k, v = (x.detach().bfloat16() for x in (exact.q, exact.k, exact.v))
    score = deepcopy(exact.score).float()
    found = SDPA()(replace(exact, q=q, k=k, v=v, score=score, training=True))
    wide = Reference()(replace(exact, q=q.double(), k=k.double(), v=v.double()))
    assert_close(found.double(), wide, atol=1e-4, rtol=2**-8)


@pytest.mark.parametrize("score", ["dot", "cosine"])
@pytest.mark.parametrize("pos", ["none", "alibi"])
def test_sdpa_stays_in_bfloat16_for_many_keys(pos, score):
    attend = make(score, pos)
    q, k, v = (torch.randn(1, H, SHORT + 1, K, dtype=torch.bfloat16) for _ in range(3))
    run = SDPA().resolve(Parts(attend.score, attend.pos))
    run(replace(attend, q=q, k=k, v=v, training=True))
    assert run.describe() == "sdpa (flash)"
