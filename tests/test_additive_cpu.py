"""Sums of tanh without a tanh for every pair: values, gradients, types, limits, memory."""

import pytest
import torch
from make_model import normal
from torch import Tensor
from torch.library import opcheck

from ablate.kernel import additive_cpu as module
from ablate.kernel.additive_cpu import LIMITS, tanh_sum
from ablate.model.attention.additive import Additive

SIZES = {"heads": 3, "query_dim": 4, "key_dim": 4, "length": 6}


def parts(i: int = 5, j: int = 6, d: int = 4) -> tuple[Tensor, Tensor, Tensor]:
    shapes = ((2, 3, i, d), (2, 3, j, d), (3, d))
    q, k, v = (normal(*shape, seed=seed) for seed, shape in enumerate(shapes))
    return q.requires_grad_(), k.requires_grad_(), v.requires_grad_()


def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (torch.tanh(q[:, :, :, None] + k[:, :, None]) * v[:, None, None]).sum(-1)


@pytest.mark.parametrize("elements", [1, 50, 130, 300, 2**16])
def test_it_is_the_sum_in_any_pieces(elements: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ELEMENTS", elements)
    given, weights = parts(), normal(2, 3, 5, 6, seed=9)
    found, expected = tanh_sum(*given), plain(*given)
    torch.testing.assert_close(found, expected)
    ours, theirs = (torch.autograd.grad(y, given, weights) for y in (found, expected))
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other)


def test_no_keys_are_no_sums() -> None:
    """What a window behind the end of the source leaves."""
    given = parts(j=0)
    assert tanh_sum(*given).shape == (2, 3, 5, 0)
    assert all(not g.any() for g in torch.autograd.grad(tanh_sum(*given).sum(), given))


def test_gradients_are_those_of_small_differences() -> None:
    assert torch.autograd.gradcheck(tanh_sum, parts(2, 3, 2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_other_types_are_as_near_as_they_can_be(dtype: torch.dtype) -> None:
    exact = plain(*parts())
    found = tanh_sum(*(x.detach().to(dtype) for x in parts()))
    assert found.dtype == dtype
    rounding = torch.finfo(dtype).eps
    torch.testing.assert_close(found.double(), exact, atol=8 * rounding, rtol=4 * rounding)


@pytest.mark.parametrize("dtype", LIMITS)
@pytest.mark.parametrize("share", [1.0, 1.01, 1000.0])
def test_numbers_of_any_size_have_their_sum_and_gradients(dtype: torch.dtype, share: float) -> None:
    """Up to the limit by exponentials of q and k alone, beyond it by one for each pair."""
    limit, v = share * LIMITS[dtype], torch.ones(1, 1, dtype=dtype)
    q = torch.tensor([limit, -limit, 0.0, limit - 1, 0.5], dtype=dtype)[None, None, :, None]
    given = q.clone().requires_grad_(), q.clone().requires_grad_(), v.requires_grad_()
    found, expected = tanh_sum(*given), plain(*given)
    torch.testing.assert_close(found, expected)
    ours, theirs = (torch.autograd.grad(y.sum(), given) for y in (found, expected))
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other)


@pytest.mark.parametrize("wrong", [torch.nan, torch.inf])
def test_what_is_no_number_stays_where_it_is(wrong: float) -> None:
    q, k, v = (x.detach() for x in parts())
    q[0, 0, 2, 1] = wrong
    torch.testing.assert_close(tanh_sum(q, k, v), plain(q, k, v), equal_nan=True)


def test_a_compiler_is_told_what_comes_out() -> None:
    """Values, shapes and strides, of numbers that lie in memory in another order."""
    turned = [x.detach().transpose(0, -2).contiguous().transpose(0, -2) for x in parts()]
    opcheck(module.sums, [x.requires_grad_() for x in turned])
    opcheck(module.gradients, [normal(2, 3, 6, 5, seed=9).mT, *(x.detach() for x in turned)])


def test_the_score_takes_it() -> None:
    score = Additive(hidden=None, **SIZES).double()
    torch.nn.init.normal_(score.v)
    q, k, _ = parts()
    found = score.fused(q, k)
    torch.testing.assert_close(found, score.compare(q, k))
    wide = Additive(hidden=7, **SIZES).double()
    for parameter in wide.parameters():
        torch.nn.init.normal_(parameter)
    prepared = wide.keys(k)
    found = wide.fused(q, prepared)
    torch.testing.assert_close(found, wide.compare(q, prepared))
