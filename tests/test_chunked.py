"""The chunked kernel: any size of chunks, memory linear in the length, eager and compiled."""

import itertools
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from make_model import Each, kernel, normal, part
from test_kernel import (
    LENGTH,
    MASKS,
    B,
    H,
    K,
    assert_as_reference,
    make,
    make_pos,
    make_score,
    results,
)
from torch import Tensor
from torch.library import opcheck
from torch.nn.functional import dropout
from torch.profiler import ProfilerActivity, profile
from torch.testing import assert_close

from ablate.errors import UserError
from ablate.kernel import Kernel, additive_cpu, chunked, heap
from ablate.kernel.additive_cpu import LIMITS, tanh_sum
from ablate.kernel.auto import Auto
from ablate.kernel.chunked import Chunked
from ablate.kernel.reference import Reference
from ablate.model.attention.dot import Dot


@pytest.mark.parametrize("mask", MASKS)
def test_the_size_of_the_chunks_changes_nothing(mask):
    attend = make("additive", "relative", mask, padding="some")
    sizes = (1, 2, LENGTH - 1, LENGTH + 1)
    assert_as_reference(attend, *(kernel("chunked", chunk=n, compile=False) for n in sizes))


class Drawing(Dot):
    """A custom score with torch's dropout."""

    def forward(self, q, k):
        return dropout(super().forward(q, k))


def test_a_custom_score_draws_the_same_numbers_again_in_the_backward_pass():
    sizes = {"heads": H, "query_dim": K, "key_dim": K, "length": LENGTH}
    attend = replace(make("dot"), score=Drawing(**sizes))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        expected = results(Reference(), attend)
        torch.manual_seed(0)
        assert_close(results(Chunked(chunk=LENGTH, compile=False), attend), expected)


def long(length, pos, mask):
    score = part("model.attention", "additive")(heads=2, query_dim=8, key_dim=8, length=length)
    sizes = {"dim": 16, "heads": 2, "head_dim": 8, "length": length, "depth": 1}
    q, k, v = (normal(1, 2, length, 8, seed=n).requires_grad_() for n in range(3))
    made = make("additive", mask=mask)
    return replace(made, q=q, k=k, v=v, score=score.double(), pos=part("pos_enc", pos)(**sizes))


def cost(run: Kernel, length: int, *, mask: str = "causal") -> tuple[int, int]:
    """Elements kept for the backward pass, and of the largest tensor on the way there and back."""
    attend = long(length, "alibi", mask)
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes() // tensor.element_size()
        return tensor

    sizes: list[int] = []
    with Each(lambda tensor: sizes.append(tensor.numel())):
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            context = run(attend)
        context.sum().backward()
    return sum(kept.values()), max(sizes)


def test_memory_grows_with_the_length_alone():
    run = kernel("chunked", chunk=4, compile=False)
    small, large = cost(run, 64), cost(run, 256)
    assert large[0] <= 4 * small[0]
    assert large[1] == 4 * small[1] == 2 * 4 * 256 * 8
    # Keys that no query of a chunk may see are skipped: the largest are the queries themselves.
    assert cost(run, 64, mask="window")[1] == 2 * 64 * 8
    # The reference keeps all of queries x keys x width: the measure sees it.
    kept, biggest = cost(Reference(), 64)
    assert kept > biggest == 2 * 64 * 64 * 8


def peak(run, length):
    """Bytes alive at once at the most, forward and backward, the insides of operations too."""
    attend = long(length, "none", "causal")
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        run(attend).sum().backward()
    events = [e for e in seen.profiler.kineto_results.events() if e.name() == "[memory]"]
    changes = [e.nbytes() for e in sorted(events, key=lambda e: e.start_ns())]
    return max(itertools.accumulate(changes))


@pytest.mark.slow
@pytest.mark.parametrize("compile", ["auto", False])
def test_all_that_is_alive_grows_with_the_length_alone(compile, monkeypatch):
    monkeypatch.setattr(additive_cpu, "ELEMENTS", 2**12)
    monkeypatch.setattr(Chunked, "ELEMENTS", 2**15)
    monkeypatch.setattr(chunked, "compiler", lambda device: False)
    small, middle, large = (peak(kernel("chunked", compile=compile), n) for n in (256, 512, 1024))
    assert large - middle <= 2.1 * (middle - small)  # were it the square: 4 times
    assert large < 4 * small


def test_holes_are_given_back_in_both_passes(monkeypatch):
    given = []
    monkeypatch.setattr(heap, "give_back", lambda: given.append(None))
    run = kernel("chunked", chunk=4)
    cost(run, 64)
    assert not given  # it costs time, and a short call leaves little
    monkeypatch.setattr(heap, "BYTES", 3 * 2 * 4 * 64 * 8)  # three chunks' largest tensors
    cost(run, 64)
    assert len(given) == 2 * 16 // 4  # of 16 chunks, there and back


def resident():
    """Bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(
    not (sys.platform == "linux" and hasattr(heap.libc(), "malloc_trim")), reason="not glibc"
)
def test_what_is_given_back_is_memory():
    holes = [torch.ones(2**16, dtype=torch.uint8) for _ in range(1024)]  # 64 KB each: in the heap
    between = holes[::2]
    before = resident()
    del holes
    heap.give_back()
    assert before - resident() > 2**24  # half of 64 MB is free
    assert all(bool(x.all()) for x in between)


def test_chunks_are_as_large_as_fits(monkeypatch):
    monkeypatch.setattr(Chunked, "ELEMENTS", 2 * 4 * 64 * 8 + 1)
    _, biggest = cost(kernel("chunked", compile=False), 64)
    assert biggest == 2 * 4 * 64 * 8
    # additive with a hidden width makes a tensor of queries x keys x hidden.
    monkeypatch.setattr(Chunked, "ELEMENTS", 2 * B * H * LENGTH * 32)
    score = part("model.attention", "additive", hidden=32)
    attend = make("additive")
    attend.score = score(heads=H, query_dim=K, key_dim=K, length=LENGTH).double()
    sizes = []
    with Each(lambda tensor: sizes.append(tensor.numel())):
        kernel("chunked", compile=False)(attend).sum().backward()
    assert max(sizes) <= Chunked.ELEMENTS


@pytest.mark.parametrize("elements", [1, 50, 2**16])  # of a piece
@pytest.mark.parametrize("chunk", [None, 3])
@pytest.mark.parametrize("score", ["additive", "additive, hidden"])
def test_a_fused_score_is_the_score(score, chunk, elements, monkeypatch):
    monkeypatch.setattr(additive_cpu, "ELEMENTS", elements)
    for shape, padding in (("square", "some"), ("cached", "none"), ("cross", "empty rows")):
        attend = make(score, "alibi", "causal", shape=shape, padding=padding)
        run = kernel("chunked", chunk=chunk).resolve(attend.score.needs | attend.pos.needs)
        assert_as_reference(attend, run)
        assert run.describe() == "chunked (fused)"


def test_a_fused_score_makes_no_tensor_of_the_width(monkeypatch):
    monkeypatch.setattr(additive_cpu, "ELEMENTS", 64 * 8)
    kept, biggest = cost(kernel("chunked"), 64)
    assert biggest == 2 * 64 * 64  # the weights
    assert kept < 8 * biggest  # a few of them, none with the width 8
    _, biggest = cost(kernel("chunked", chunk=4), 256)
    assert biggest <= 2 * 256 * 64


@pytest.mark.slow
@pytest.mark.skipif(not chunked.compiler("cpu"), reason="no C++ compiler on the path")
def test_compiled_chunks_equal_eager_ones():
    for shape, padding in (("square", "some"), ("cached", "none")):
        attend = make("additive", "t5", "causal", shape=shape, padding=padding)
        run = kernel("chunked", chunk=4, compile=True).resolve(
            attend.score.needs | attend.pos.needs
        )
        assert_as_reference(attend, run)
        assert run.describe() == "chunked (compiled)"


def test_it_compiles_in_training_if_asked(monkeypatch):
    made = []
    monkeypatch.setattr(chunked, "compiler", lambda device: True)
    compiled = lambda: made.append("compiled") or chunked.run_score  # noqa: E731
    monkeypatch.setattr(chunked, "compiled_score", compiled)
    monkeypatch.setattr(Chunked, "ELEMENTS", 1)  # every call is a large one
    attend = make("gatv2")
    layer = attend.score.needs | attend.pos.needs
    for unasked in (Auto(), kernel("chunked"), kernel("chunked", compile=False)):
        run = unasked.resolve(layer)
        run(attend)
        assert (made, run.describe()) == ([], "chunked")
    run = kernel("chunked", compile=True).resolve(layer)
    with torch.no_grad():
        run(attend)
    assert made == []  # generation has a new shape for every token
    run(attend)
    assert (made, run.describe()) == (["compiled"], "chunked (compiled)")


def test_it_refuses_to_compile_without_a_compiler(monkeypatch):
    monkeypatch.setattr(chunked, "compiler", lambda device: False)
    with pytest.raises(UserError, match=r"kernel\.compile=true needs a C"):
        kernel("chunked", compile=True).resolve(
            make_score("additive").needs | make_pos("none").needs
        )


# Sums of tanh without a tanh for every pair


def parts(j=6):
    shapes = ((2, 3, 5, 4), (2, 3, j, 4), (3, 4))
    return [normal(*shape, seed=seed).requires_grad_() for seed, shape in enumerate(shapes)]


def plain(q, k, v):
    return (torch.tanh(q[:, :, :, None] + k[:, :, None]) * v[:, None, None]).sum(-1)


def assert_sum(*given):
    """And its gradients."""
    found, expected = tanh_sum(*given), plain(*given)
    assert_close(found, expected)
    assert_close(*(torch.autograd.grad(y.sum(), given) for y in (found, expected)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_other_types_are_as_near_as_they_can_be(dtype):
    exact = plain(*parts())
    found = tanh_sum(*(x.detach().to(dtype) for x in parts()))
    assert found.dtype == dtype
    rounding = torch.finfo(dtype).eps
    assert_close(found.double(), exact, atol=8 * rounding, rtol=4 * rounding)


@pytest.mark.parametrize("dtype", LIMITS)
def test_numbers_of_any_size_have_their_sum_and_gradients(dtype):
    """Up to the limit by exponentials of q and k alone, beyond it by one for each pair."""
    for share in (1.0, 1.01, 1000.0):
        limit, v = share * LIMITS[dtype], torch.ones(1, 1, dtype=dtype)
        q = torch.tensor([limit, -limit, 0.0, limit - 1, 0.5], dtype=dtype)[None, None, :, None]
        assert_sum(*(x.clone().requires_grad_() for x in (q, q, v)))
    assert_sum(*parts(j=0))  # what a window behind the end of the source leaves


def test_what_is_no_number_stays_where_it_is():
    q, k, v = (x.detach() for x in parts())
    q[0, 0, 2, 1], q[1, 0, 3, 0] = torch.nan, torch.inf
    assert_close(tanh_sum(q, k, v), plain(q, k, v), equal_nan=True)


@pytest.mark.ci
def test_a_compiler_is_told_what_comes_out():
    """Values, shapes and strides, of numbers that lie in memory in another order."""
    turned = [x.detach().transpose(0, -2).contiguous().transpose(0, -2) for x in parts()]
    opcheck(additive_cpu.sums, [x.requires_grad_() for x in turned])
    opcheck(additive_cpu.gradients, [normal(2, 3, 6, 5, seed=9).mT, *(x.detach() for x in turned)])
