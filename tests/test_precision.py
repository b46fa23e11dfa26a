"""bfloat16: every part computes in it, and what comes out is near what float32 gives."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from importlib import reload
from itertools import product
from typing import Any

import pytest
import torch
from make_model import (
    SIZES,
    gpt,
    kernels,
    normal,
    options,
    part,
    random_parts,
    scores,
    together,
    tokens,
    vit,
)
from torch import Tensor, nn

from ablate.model.vit import ViT
from ablate.training import quiet

LENGTH = SIZES["gpt"]["length"]
# Length of the error in units of the length of the result. bfloat16 keeps 8 bits, so a rounding is
# off by up to 2^-9 of a number, and some dozens follow each other here.
NEAR = 16 * 2**-9
# A LeakyReLU that has a number near 0 may take it for one below 0, and has another slope there:
# float32 with parameters that are off by 2^-9 differs by as much (gat with t5).
KINKED = 64 * 2**-9
Around = Callable[[], AbstractContextManager[None]]
PRECISIONS: dict[str, tuple[torch.dtype, Around]] = {
    "bf16-mixed": (torch.float32, lambda: torch.autocast("cpu", dtype=torch.bfloat16)),
    "bf16-true": (torch.bfloat16, nullcontext),
}


def made(score: str, pos_enc: str, kernel: str) -> nn.Module:
    """A model of the parts, its parameters away from 0 and 1 and exact in bfloat16."""
    model = vit if pos_enc.endswith("_2d") else gpt
    network = random_parts(model(attention=score, pos_enc=pos_enc, kernel=kernel))
    return network.bfloat16()


def results(network: nn.Module, dtype: torch.dtype, around: Around) -> tuple[Tensor, Tensor]:
    """The output, and the gradients of all parameters in one row."""
    network = network.to(dtype)
    with around():
        if isinstance(network, ViT):
            output = network(normal(2, 2, 6, 6).to(dtype))
        else:
            keep = torch.ones(2, LENGTH, dtype=torch.bool)
            keep[0, 4:] = False
            keep[1, :2] = False  # before these no query sees anything
            output = network(tokens(2, LENGTH), keep=keep)[keep]
        loss = (output * normal(*output.shape, seed=9).to(output.dtype)).sum()
    loss.backward()
    gradients = [parameter.grad for parameter in network.parameters()]
    return output.detach().float(), torch.cat([grad.flatten().float() for grad in gradients])


def cases() -> Iterator[Any]:
    """Every score with every encoding; by default each once."""
    for score, pos_enc in product(scores(), options("pos_enc")):
        if together(score, pos_enc):
            once = pos_enc == "none" or score == "scaled_dot"
            yield pytest.param(score, pos_enc, marks=[] if once else [pytest.mark.slow])


@pytest.mark.parametrize(("score", "pos_enc"), cases())
def test_every_combination_computes_in_bfloat16(score: str, pos_enc: str) -> None:
    exact = results(made(score, pos_enc, "reference"), torch.float32, nullcontext)
    func = part("model.attention", score).func
    for kernel in kernels():
        if kernel == "auto":  # which takes one of the others
            continue
        if kernel == "sdpa" and ("dot_product" not in func.needs or pos_enc == "relative"):
            continue
        for dtype, around in PRECISIONS.values():
            found = results(made(score, pos_enc, kernel), dtype, around)
            slopes = KINKED if score in ("gat", "gatv2") else NEAR
            for mine, expected, near in zip(found, exact, (NEAR, slopes), strict=True):
                assert mine.isfinite().all()
                assert (mine - expected).norm() < near * expected.norm()


@pytest.mark.parametrize(
    "changes",
    [{}, {"kv_heads": 1}, {"attention": "location"}, {"qk_norm": "rms"}, {"bias": False}],
    ids=str,
)
def test_queries_keys_and_values_are_one_product_under_autocast(changes: dict[str, Any]) -> None:
    """The same numbers as from three; half as much is converted."""
    layer = random_parts(gpt(**changes)).float().stack.blocks[0].attention.function
    x = normal(2, LENGTH, SIZES["gpt"]["dim"]).float()
    maps = [m for m in (layer.query, layer.key, layer.value) if m is not None]

    def counted(compute: Callable[[], tuple[Tensor, ...]]) -> tuple[tuple[Tensor, ...], int]:
        with torch.profiler.profile() as seen:
            found = compute()
        return found, sum(e.count for e in seen.key_averages() if e.key == "aten::linear")

    with torch.autocast("cpu", dtype=torch.bfloat16):
        apart, several = counted(lambda: (layer.queries(x), layer.keys(x), layer.values(x)))
        found, one = counted(lambda: layer.projected(x))
    assert several == len(maps) * one
    for ours, theirs in zip(found, apart, strict=True):
        assert ours.dtype == theirs.dtype or not ours.numel()
        torch.testing.assert_close(ours.to(theirs.dtype), theirs, rtol=2**-7, atol=2**-8)


def test_an_rms_norm_under_autocast_is_one_in_float32_rounded_without_a_warning() -> None:
    norm, x = random_parts(nn.RMSNorm(8)), normal(2, 8).bfloat16()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        reload(quiet)
        torch.set_warn_always(True)
        try:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                rounded = norm(x)
        finally:
            torch.set_warn_always(False)
    assert not said
    assert torch.equal(rounded, norm(x.float()).bfloat16())
