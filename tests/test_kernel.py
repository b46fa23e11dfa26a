"""Kernels: each has the values and gradients of the reference, in float64, or refuses."""

import itertools
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
import torch
from make_model import kernel, normal, options, part, random_parts, scores
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask
from torch.testing import assert_close

from ablate.config.keys import option_content
from ablate.config.parts import locate
from ablate.config.tree import config_files
from ablate.errors import UserError
from ablate.kernel import FEATURES, AttentionInputs, Kernel
from ablate.kernel import flex as flex_module
from ablate.kernel.auto import Auto
from ablate.kernel.chunked import Chunked
from ablate.kernel.flex import Flex
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
    if "edges" not in part("model.mask", name).func.needs  # which are no matter of positions
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
) -> AttentionInputs:
    queries, keys, start = SHAPES[shape]
    structure = part("model.mask", mask, **MASKS[mask])(causal=True)
    reads = make_score(score)
    sizes = (queries, K * reads.query), (keys, K * reads.key), (keys, K)
    q, k, v = (normal(B, H, *size, seed=n).requires_grad_() for n, size in enumerate(sizes))
    return AttentionInputs(
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


def results(run: Kernel, attend: AttentionInputs) -> list[Tensor]:
    """The context, and the gradients of queries, keys, values and all parameters."""
    context = run(attend)
    weighed = (context * normal(*context.shape, seed=9).to(context)).sum()
    inputs = [attend.q, attend.k, attend.v, *attend.score.parameters(), *attend.pos.parameters()]
    gradients = torch.autograd.grad(weighed, inputs, allow_unused=True, materialize_grads=True)
    return [context.detach(), *gradients]


def assert_as_reference(attend: AttentionInputs, *runs: Kernel) -> None:
    """In the context and every gradient."""
    expected = results(Reference(), attend)
    assert all(x.isfinite().all() for x in expected)
    for run in runs:
        assert_close(results(run, attend), expected, atol=1e-11, rtol=1e-9)


def resolved(score, pos):
    """Every kernel that accepts the parts."""
    parts = make_score(score).needs | make_pos(pos).needs
    return [each.resolve(parts) for each in KERNELS.values() if parts <= each.provides]


def combined():
    """Each score and encoding that can be combined, by default with one mask."""
    pairs = [
        (score, pos)
        for score, pos in itertools.product(SCORES, ENCODINGS)
        if make_score(score).query or not pos.startswith("relative")
    ]
    for (n, (score, pos)), (m, mask) in itertools.product(enumerate(pairs), enumerate(MASKS)):
        once = m == n % len(MASKS) and (pos == "alibi" or score in ("scaled_dot", "additive"))
        yield pytest.param(score, pos, mask, marks=[] if once else pytest.mark.slow)


@pytest.mark.parametrize(("score", "pos", "mask"), combined())
@pytest.mark.filterwarnings("ignore:flex_attention called without")
def test_every_kernel_equals_the_reference(score, pos, mask):
    """Every shape and every padding; between them the masks have every pair of the two."""
    kernels = resolved(score, pos)
    assert len(kernels) >= len(KERNELS) - 1  # sdpa alone may refuse
    flex = make_score(score).needs | make_pos(pos).needs <= Flex.provides
    turn = list(MASKS).index(mask) % len(PADDING)
    for shape, padding in zip(SHAPES, PADDING[turn:] + PADDING[:turn], strict=True):
        attend = make(score, pos, mask, shape=shape, padding=padding)
        assert_as_reference(attend, *kernels)
        if flex and (shape != "cross" or pos == "none"):  # two sequences have no distance
            with torch.no_grad():  # torch has no backward pass of it on a CPU: test_gpu.py
                assert_close(Flex()(attend), Reference()(attend))


@pytest.mark.parametrize(("shape", "padding"), [("square", "some"), ("cached", "none")])
def test_a_causal_mask_that_torch_does_not_know(shape, padding):
    """Without a bias torch masks the future itself: of all queries, and without padding."""
    assert_as_reference(make("dot", mask="causal", shape=shape, padding=padding), kernel("sdpa"))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("mask", MASKS)
def test_the_reference_is_the_formula(mask, shape):
    """One query at a time, over the keys that it may see, which are listed by hand; with positions
    in keys and values: sum_j w_ij (v_j + c_ij) with scores q_i (k_j + a_ij) / sqrt(k), Shaw's
    equations 3 and 4. A row that sees nothing is zero."""
    attend = make("scaled_dot", "relative", mask, shape=shape, padding="empty rows")
    pos, context = attend.pos, Reference()(attend)
    may_see = {
        "none": lambda i, j: True,
        "causal": lambda i, j: j <= i,
        "window": lambda i, j: i - 3 < j <= i,
        "prefix": lambda i, j: j <= i or j < 3,
        "source": lambda i, j: j <= i,  # here without a source
    }[mask]
    queries, keys, start = SHAPES[shape]
    for b, h, n in itertools.product(range(B), range(H), range(queries)):
        i = n + start
        seen = [j for j in range(keys) if may_see(i, j) and attend.keep[b, j]]
        row = torch.tensor(seen, dtype=torch.long) - i + pos.max_distance
        a, c = pos.key_tables[attend.layer][row], pos.value_tables[attend.layer][row]
        scores = (attend.k[b, h, seen] + a) @ attend.q[b, h, n] / K**0.5
        expected = scores.softmax(0) @ (attend.v[b, h, seen] + c)
        assert_close(context[b, h, n], expected)


# Kernel, score, positions, other needs of the layer, what the kernel does not support.
REFUSED = [
    ("sdpa", "additive", "none", "", "scores that are sums over a width"),
    ("flex", "additive", "none", "", "scores that are sums over a width"),
    ("triton", "dot", "none", "", "scaled dot products"),
    ("sdpa", "dot", "relative", "", "access to the attention weights"),
    ("sdpa", "dot", "none", "normalizer", "a normalizer other than softmax"),
    ("sdpa", "dot", "none", "weights", "access to the attention weights"),
    ("flex", "dot", "relative", "", "access to the attention weights"),
    ("flex", "dot", "none", "bias", "not a function of the distance"),
    ("flex", "dot", "none", "edges", "the edges of a graph"),
    ("flex", "dot", "none", "dropout", "dropout of the attention weights"),
    ("triton", "additive", "none", "normalizer", "a normalizer other than softmax"),
    ("triton", "additive", "none", "mask", "several ranges of keys"),
    ("sdpa", "dot", "none", "softcap", "soft capping"),
    ("flex", "dot", "none", "sink", "a sink"),
]


@pytest.mark.parametrize(("name", "score", "pos", "more", "says"), REFUSED)
def test_what_a_kernel_cannot_compute_is_refused(name, score, pos, more, says):
    needs = make_score(score).needs | make_pos(pos).needs | set(more.split())
    with pytest.raises(UserError, match=rf"^kernel={name} does not .*{says}.*; use kernel=auto$"):
        kernel(name).resolve(needs)
    assert not isinstance(Auto().resolve(needs), type(kernel(name)))


def test_needs_and_abilities_are_known_features():
    """A misspelt feature would be one that no kernel lacks, or none has."""
    targets = [option_content(file)[0].get("_target_") or "" for file in config_files("*/*.yaml")]
    parts = [locate(target) for target in targets if target.startswith("ablate.")]
    named = {feature for part in parts for feature in getattr(part, "needs", ())}
    named |= {f for part in parts for f in getattr(part, "needs_if", {}).values()}
    assert named == FEATURES.keys() - {"score"}  # of a score from outside
    provided = {feature for part in parts for feature in getattr(part, "provides", ())}
    assert provided == FEATURES.keys() | {"groups", "float64", "cpu", "interpreter"}


@pytest.mark.skipif(torch.cuda.is_available(), reason="here it could train")
def test_without_a_gpu_flex_is_refused():
    with pytest.raises(UserError, match=r"kernel=flex cannot run here: it trains on a GPU"):
        Flex().resolve(make_score("dot").needs | make_pos("alibi").needs)


def test_auto_takes_the_fastest_that_is_exact():
    none, values = make_pos("none"), make_pos("relative")
    assert isinstance(Auto().resolve(make_score("cosine").needs | none.needs), SDPA)
    assert isinstance(Auto().resolve(make_score("cosine").needs | values.needs), Reference)
    additive = Auto().resolve(make_score("additive").needs | none.needs)
    assert isinstance(additive, Chunked)
    assert additive.describe() == "chunked"  # so far


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("mask", MASKS)
def test_flex_skips_the_blocks_that_are_masked_and_no_other(mask, padded, monkeypatch):
    """As torch's own, which asks for every pair. Three blocks of queries, four of keys."""
    queries, keys = 5, 7
    monkeypatch.setattr(flex_module, "BLOCK", 2)
    made = make("scaled_dot", mask=mask, padding="some" if padded else "none")
    attend = replace(made, q=normal(B, H, queries, K), start=2)
    if (found := flex_module.seen(attend)) is None:
        assert (mask, padded) == ("none", False)
        return
    batch = B if padded else None
    every = create_block_mask(found.mask_mod, batch, None, queries, keys, "cpu", 2)
    for name in ("kv_num_blocks", "full_kv_num_blocks"):
        ours, theirs = getattr(found, name), getattr(every, name)
        if not padded:
            assert torch.equal(ours, theirs), name
    assert torch.equal(found.to_dense().expand_as(every.to_dense()), every.to_dense())


def test_on_a_gpu_auto_fuses_additive_scores(monkeypatch):
    """What is computed on the CPU there, as for the figures of a run, is computed in chunks."""
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for score in ("additive", "gatv2", "gat"):
        assert Auto().resolve(make_score(score).needs | make_pos("t5").needs).name == "triton"
    attend = make("additive", "t5")
    run = Auto().resolve(attend.score.needs | attend.pos.needs)
    assert run.describe() == "triton"  # nothing so far
    assert_as_reference(attend, run)
    assert run.describe() == "chunked (fused)"
    for score, facts in (("additive", {"normalizer"}), ("dot", set())):
        parts = make_score(score).needs | make_pos("none").needs | facts
        assert Auto().resolve(parts).name in ("chunked", "sdpa")


@pytest.mark.parametrize(
    ("bias", "padding"),
    [("alibi", "none"), pytest.param("t5", "some", marks=pytest.mark.slow)],
)
def test_flex_is_compiled_with_all_the_rest(monkeypatch, bias, padding):
    """As it is on a GPU: compile=true compiles a model whole, and nothing in it compiles again."""
    monkeypatch.setattr(flex_module, "PLAIN", set())
    made = make("scaled_dot", bias, "causal", padding=padding)
    # torch looks for gradients here, which a CPU has not.
    attend = replace(made, q=made.q.detach(), k=made.k.detach(), v=made.v.detach())
    attend.pos.requires_grad_(False)
    whole = torch.compile(Flex(), fullgraph=True, backend="eager")
    with torch.no_grad():
        assert_close(whole(attend), Reference()(attend))


@pytest.mark.parametrize(
    ("given", "backend"),
    [
        (("scaled_dot", "none", "causal"), "flash"),
        (("cosine", "alibi", "window"), "flash"),
        (("dot", "t5", "none"), "math"),
    ],
)
def test_sdpa_says_which_backend_ran(given, backend):
    """By torch's own rules on a CPU (sdp_utils_cpp.cpp): the profiler saw the operation."""
    attend = make(*given, padding="some" if "alibi" in given else "none")
    run = SDPA().resolve(attend.score.needs | attend.pos.needs)
    assert run.describe() == "sdpa"  # nothing so far
    with torch.profiler.profile() as seen:
        run(attend)
    assert run.describe() == f"sdpa ({backend})"
    operations = {"flash": "_flash_attention_for_cpu", "math": "_attention_math"}
    assert any(operations[backend] in event.name for event in seen.events() or [])
    run(replace(attend, dropout=0.1, training=True, stream=torch.tensor(1)))
    said = f"sdpa (training: reference, for dropout; evaluation: {backend})"
    assert run.describe() == said


@pytest.mark.parametrize(("mixed", "pos"), [(True, "none"), (False, "alibi")])
def test_sdpa_is_computed_in_float32_where_bfloat16_is_slow(mixed, pos):
    """On a CPU, in training, for few keys: exactly that, rounded once; and said."""
    exact = make("dot", pos, "causal", padding="some")
    leaves = [x.detach().bfloat16().requires_grad_() for x in (exact.q, exact.k, exact.v)]
    q, k, v = leaves
    run = SDPA().resolve(exact.score.needs | exact.pos.needs)
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


@pytest.mark.parametrize(("score", "pos"), [("dot", "none"), ("cosine", "alibi")])
def test_sdpa_stays_in_bfloat16_for_many_keys(score, pos):
    attend = make(score, pos)
    q, k, v = (torch.randn(1, H, SHORT + 1, K, dtype=torch.bfloat16) for _ in range(3))
    run = SDPA().resolve(attend.score.needs | attend.pos.needs)
    run(replace(attend, q=q, k=k, v=v, training=True))
    assert run.describe() == "sdpa (flash)"
