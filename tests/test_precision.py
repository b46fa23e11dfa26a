"""bfloat16: every part computes in it, and what comes out is near what float32 gives."""

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from importlib import reload
from itertools import product
from pathlib import Path
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
from tiny import overrides
from torch import Tensor, nn
from torchao.float8.float8_linear import Float8Linear

import ablate
from ablate.config.composition import Composition
from ablate.errors import UserError
from ablate.evaluate import evaluate
from ablate.model.vit import ViT
from ablate.training import quiet
from ablate.training.float8 import Float8
from ablate.training.load import load
from ablate.training.trainer import precision_of

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


def rounded(x: Tensor, kind: torch.dtype) -> Tensor:
    """To float8, scaled by the largest number of the tensor, and back."""
    scale = torch.finfo(kind).max / x.abs().max().double()
    return (x.double() * scale).float().to(kind).double() / scale


def test_float8_rounds_inputs_weights_and_gradients_of_products() -> None:
    """Products of numbers that were rounded, against products of doubles."""
    network = gpt(dim=32, heads=2).bfloat16().float()
    names = [*network.state_dict()]
    plain = network.stack.blocks[0].attention.function.out
    Float8("cpu").convert_module(nn.Sequential(network))
    linear = network.stack.blocks[0].attention.function.out
    assert linear.weight is plain.weight
    assert [*network.state_dict()] == names
    x, g = normal(2, 5, 32).bfloat16().requires_grad_(), normal(2, 5, 32, seed=3).bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = linear(x)
    y.backward(g)
    x8, w8 = (rounded(t.detach(), torch.float8_e4m3fn) for t in (x, linear.weight))
    g8 = rounded(g, torch.float8_e5m2)
    assert y.dtype == torch.bfloat16
    near = {"rtol": 2**-7, "atol": 2**-7}  # bfloat16
    torch.testing.assert_close(y.double(), x8 @ w8.T + linear.bias.double(), **near)
    torch.testing.assert_close(x.grad.double(), g8 @ w8, **near)
    torch.testing.assert_close(
        linear.weight.grad.double(), torch.einsum("bio,bij->oj", g8, x8), rtol=2**-6, atol=2**-5
    )


def test_float8_is_of_the_maps_in_blocks_whose_sizes_allow_it() -> None:
    network = gpt(dim=32, heads=2, tie_embeddings=False, ffn_dim=40)
    Float8("cpu").convert_module(nn.Sequential(network))
    Float8("cpu").convert_module(nn.Sequential(network))  # for the evaluation
    found = {n for n, part in network.named_modules() if isinstance(part, Float8Linear)}
    maps = ("query", "key", "value", "out")
    blocks = range(len(network.stack.blocks))
    assert found == {f"stack.blocks.{n}.attention.function.{name}" for n in blocks for name in maps}
    with pytest.raises(UserError, match="no linear map of this model's blocks has sizes that are"):
        Float8("cpu").convert_module(nn.Sequential(gpt(dim=24, heads=2)))


def test_maps_in_float8_read_no_rows() -> None:
    """As an expert without tokens does; its gradients are zero."""
    network = nn.Sequential(gpt(dim=32, heads=2))
    Float8("cpu").convert_module(network)
    linear = next(part for part in network.modules() if isinstance(part, Float8Linear))
    assert linear(torch.zeros(0, 32)).shape == (0, 32)
    linear(torch.zeros(0, 32)).sum().backward()
    assert not linear.weight.grad.any()


def test_a_run_in_float8_is_evaluated_as_it_was_measured(tmp_path: Path) -> None:
    typed = overrides(tmp_path, "trainer.precision=fp8-mixed")
    result = ablate.run(cfg := ablate.compose(*typed))
    bfloat16 = ablate.run(ablate.compose(*overrides(tmp_path, "trainer.precision=bf16-mixed")))
    assert result["metrics"] != bfloat16["metrics"]
    assert result["metrics"]["val/loss"] == pytest.approx(bfloat16["metrics"]["val/loss"], rel=0.02)
    again = evaluate(load(Composition(cfg).folder), {})
    assert again["val/loss"] == pytest.approx(result["metrics"]["val/loss"], rel=1e-6)


def test_float8_needs_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchao", None)
    with pytest.raises(UserError, match=r"fp8-mixed needs the library torchao: pip install"):
        precision_of("fp8-mixed", "cpu")
