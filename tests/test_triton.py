"""kernel=triton equals the reference: in Triton's interpreter, or on a GPU where there is one."""

from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import torch
from make_model import kernel, normal, part, random_parts
from make_study import change
from omegaconf import OmegaConf
from test_chunked import cost
from test_kernel import MASKS, PADDING, SHAPES, H, K, make, make_pos, make_score, results
from tiny import in_a_process, overrides
from torch import Tensor
from torch.library import opcheck
from torch.testing import assert_close

import ablate
from ablate.config.saved import counted
from ablate.config.tree import config_dir
from ablate.errors import UserError
from ablate.kernel import attention_weights
from ablate.kernel import triton as module
from ablate.kernel.reference import Reference
from ablate.kernel.triton import Triton, interpreted
from ablate.model.layers.stack import kernels

pytest.importorskip("triton", reason="triton comes with torch on Linux alone")
from ablate.kernel import additive_triton

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
EXACT = torch.float64 if interpreted() else torch.float32
NEAR = {torch.float64: 1e-11, torch.float32: 2e-5, torch.bfloat16: 2e-2}
SUMS = ["additive", "additive, hidden", "gat", "gatv2"]
# rotary turns queries and keys before a kernel meets them, the others are added to embeddings.
BIASES = ["none", "alibi", "t5", "relative, keys"]


def placed(attend, dtype, device=DEVICE):
    """The same on a device and in a precision."""
    q, k, v = (
        x.detach().to(device, dtype).requires_grad_() for x in (attend.q, attend.k, attend.v)
    )
    score, pos = attend.score.to(device, dtype), attend.pos.to(device, dtype)
    keep = None if attend.keep is None else attend.keep.to(device)
    return replace(attend, q=q, k=k, v=v, score=score, pos=pos, keep=keep)


def assert_equal(attend, dtype=EXACT):
    """In that precision, to the reference in float64 of the same numbers."""
    mine = placed(attend, dtype)
    run = kernel("triton").resolve(mine.score.needs.union(mine.pos.needs, mine.mask.needs))
    found = results(run, mine)
    assert run.describe() == ("triton (interpreted)" if interpreted() else "triton")
    assert [x.dtype for x in found] == [dtype] * len(found)
    expected = results(Reference(), placed(mine, torch.float64, "cpu"))
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.isfinite().all()
        tolerance = NEAR[dtype] * max(1.0, theirs.abs().max().item())
        assert_close(ours.cpu().double(), theirs, atol=tolerance, rtol=0)


EVERY = list(product(SUMS, MASKS, BIASES, SHAPES, PADDING))
# Every option once at least.
SOME = [
    (SUMS[n % 4], mask, BIASES[n % 4], list(SHAPES)[n % 3], PADDING[(n + 1) % 3])
    for n, mask in enumerate(MASKS)
]


@pytest.mark.parametrize(
    ("score", "mask", "pos", "shape", "padding"),
    [pytest.param(*each, marks=[] if each in SOME else [pytest.mark.slow]) for each in EVERY],
)
def test_it_equals_the_reference(score, mask, pos, shape, padding):
    assert_equal(make(score, pos, mask, shape=shape, padding=padding))


@pytest.mark.parametrize(
    ("score", "pos", "dtype"),
    [("additive", "t5", torch.bfloat16), ("gatv2", "alibi", torch.float32)],
)
def test_it_equals_the_reference_in_its_precision(score, pos, dtype):
    assert_equal(make(score, pos, "causal", padding="some"), dtype)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("queries", "keys", "mask"),
    [(20, 18, "none"), (5, 40, "causal"), (50, 50, "window"), (50, 35, "prefix")],
)
def test_blocks_are_put_together(monkeypatch, queries, keys, mask):
    """Several blocks of queries, keys, width, value width and bias, some of them without a pair."""
    for name in ("ROWS", "COLUMNS", "VALUES"):
        monkeypatch.setattr(additive_triton, name, 16)
    sizes = {"heads": 1, "length": keys}
    score = part("model.attention", "additive")(query_dim=17, key_dim=17, **sizes)
    pos = part("pos_enc", "t5", buckets=18, max_distance=20)(dim=17, head_dim=17, depth=1, **sizes)
    q, k, v = (normal(1, 1, n, w, seed=n + w) for n, w in ((queries, 17), (keys, 17), (keys, 18)))
    keep = torch.ones(1, keys, dtype=torch.bool)
    keep[0, 3:17] = False
    parts = {"score": random_parts(score), "pos": random_parts(pos), "layer": 0, "keep": keep}
    made = make("additive", mask=mask)
    assert_equal(replace(made, q=q, k=k, v=v, start=max(0, keys - queries), **parts))


@pytest.mark.slow
@pytest.mark.parametrize("slope", [None, 0.2])
def test_torch_knows_what_it_gives_back(slope):
    """Its strides too, on which compile=true relies; of transposed tensors as of others."""
    b, h, i, j, d = 2, 2, 5, 7, 3
    q, k, values = (normal(b, h, d, n, seed=n).mT.to(DEVICE, EXACT) for n in (i, j, j))
    v, table = normal(h, d).to(DEVICE, EXACT), normal(1, h, 1, 4).to(DEVICE, EXACT)
    rows = (torch.arange(i + j - 1, device=DEVICE) % 4).int()
    begin, end = (torch.full((i,), edge, device=DEVICE, dtype=torch.int) for edge in (0, j))
    given = (q, k, v, values, table, rows, begin, end, None, None, 0.0, slope)
    opcheck(additive_triton.attention, given)
    with torch.no_grad():
        out, lse = additive_triton.attention(*given)
        gradient = normal(*out.shape, seed=9).to(out)
    tensors = [x.detach() if isinstance(x, Tensor) else x for x in given]
    for of_table in (True, False):
        opcheck(additive_triton.gradients, [gradient, out, lse, of_table, *tensors])


def test_prepared_keys_are_taken():
    attend = placed(make("additive, hidden"), EXACT)
    prepared = replace(attend, prepared=attend.score.keys(attend.k), k=torch.full_like(attend.k, 9))
    assert torch.equal(Triton()(prepared), Triton()(attend))


@pytest.mark.parametrize(("chosen", "small"), [(True, True), (True, False), (False, True)])
def test_auto_leaves_small_calls_to_the_reference(monkeypatch, chosen, small):
    attend = placed(make("additive", "t5", "causal", padding="some"), EXACT)
    size = attend.score.keys(attend.k).numel() * attend.queries
    monkeypatch.setattr(Triton, "SMALL", size if small else size - 1)
    run = Triton().resolve(attend.score.needs | attend.pos.needs)
    run.chosen = chosen
    assert_close(run(attend), Reference()(attend), atol=NEAR[EXACT], rtol=NEAR[EXACT])
    name = "triton (interpreted)" if interpreted() else "triton"
    assert run.describe() == ("reference" if chosen and small else name)


def test_scores_of_any_size_are_weighed():
    made = make("additive", padding="some")
    assert_equal(replace(made, q=1000 * made.q.detach(), k=1000 * made.k.detach()))


@pytest.mark.parametrize(
    ("start", "several"), [(2, False), pytest.param(0, True, marks=pytest.mark.ci)]
)
def test_it_drops_what_the_reference_drops(start, several, monkeypatch):
    attend = make("additive", "alibi", "causal", padding="some")
    if several:  # blocks of queries and keys
        for name in ("ROWS", "COLUMNS"):
            monkeypatch.setattr(additive_triton, name, 16)
        q, k = normal(2, H, 20, K), normal(2, H, 35, K, seed=2)
        attend = replace(attend, q=q, k=k, v=k, keep=None)
    attend = placed(attend, EXACT)
    attend = replace(attend, dropout=0.4, stream=torch.tensor(-5, device=DEVICE), start=start)
    assert not torch.equal(attention_weights(attend) @ attend.v, Reference()(attend))
    found, expected = results(Triton(), attend), results(Reference(), attend)
    assert_close(found, expected, atol=NEAR[EXACT] * 10, rtol=NEAR[EXACT])


@pytest.mark.ci
@pytest.mark.skipif(not interpreted(), reason="measures a CPU")
def test_memory_grows_with_the_length_alone(monkeypatch):
    """Of tensors in memory: nothing that a kernel makes leaves its program."""
    for name in ("ROWS", "COLUMNS"):
        monkeypatch.setattr(additive_triton, name, 16)
    small, large = (cost(kernel("triton"), length) for length in (16, 32))
    assert large[0] <= 2 * small[0]
    assert large[1] <= 2 * small[1]
    assert large[1] < 2 * 32 * 32 * 8  # the interpreter copies tensors as bytes


@pytest.mark.usefixtures("no_interpreter")
@pytest.mark.parametrize(
    ("name", "missing", "says"),
    [
        ("find_spec", lambda name: None, "the package triton is not installed"),
        ("torch.cuda.is_available", lambda: False, "it runs on a GPU, and torch sees none"),
    ],
)
def test_it_refuses_a_machine_that_cannot_run_it(monkeypatch, name, missing, says):
    monkeypatch.setattr(f"{module.__name__}.{name}", missing)
    with pytest.raises(UserError, match=rf"^kernel=triton cannot run here: {says}; use kernel=au"):
        kernel("triton").resolve(make_score("additive").needs | make_pos("none").needs)


@pytest.mark.usefixtures("no_interpreter")
def test_a_run_is_loaded_where_there_is_no_gpu(tmp_path, monkeypatch):
    cfg = ablate.compose(*overrides(tmp_path, "model.attention=additive", "trainer.max_steps=4"))
    ablate.run(cfg, tmp_path)
    trained = ablate.load(tmp_path).model
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    cfg.kernel = OmegaConf.load(config_dir() / "kernel" / "triton.yaml")
    OmegaConf.save(cfg, tmp_path / "config.yaml")
    change(tmp_path / "provenance.json", config=counted(cfg))  # as of a run on a GPU
    model = ablate.load(tmp_path).model
    read = torch.zeros(1, 9, dtype=torch.long)
    assert_close(model(read), trained(read))
    assert set(kernels(model).values()) == {"chunked (fused)"}


@pytest.mark.slow
@pytest.mark.parametrize("capability", [80, 90, 120])
def test_the_kernels_compile_for_a_gpu(capability):
    """As far as machine code, which needs no GPU; in a process where nothing is interpreted."""
    script = Path(__file__).with_name("compile_triton.py")
    done = in_a_process(script, capability, TRITON_INTERPRET="0")
    assert done.returncode == 0, done.stderr[-2000:]
    shared = [int(line.split()[-1]) for line in done.stdout.splitlines()]
    assert len(shared) == 3 * 4
    assert max(shared) <= 48 * 2**10  # which every card has; consumers' have little more
