"""Sums of tanh without a tanh for every pair: values, gradients, types, limits, memory."""

import pytest
import torch
from make_model import normal
from torch import Tensor

from ablate.model import tanh_sum as module
from ablate.model.attention.additive import Additive
from ablate.model.tanh_sum import LIMITS, tanh_sum

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
    assert found is not None
    torch.testing.assert_close(found, expected)
    ours, theirs = (torch.autograd.grad(y, given, weights) for y in (found, expected))
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other)


def test_gradients_are_those_of_small_differences() -> None:
    assert torch.autograd.gradcheck(tanh_sum, parts(2, 3, 2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_other_types_are_as_near_as_they_can_be(dtype: torch.dtype) -> None:
    exact = plain(*parts())
    found = tanh_sum(*(x.detach().to(dtype) for x in parts()))
    assert found is not None
    assert found.dtype == dtype
    rounding = torch.finfo(dtype).eps
    torch.testing.assert_close(found.double(), exact, atol=8 * rounding, rtol=4 * rounding)


@pytest.mark.parametrize("dtype", LIMITS)
def test_numbers_at_the_limit_are_exact_and_beyond_it_there_is_no_answer(
    dtype: torch.dtype,
) -> None:
    limit, v = LIMITS[dtype], torch.ones(1, 1, dtype=dtype)
    q = torch.tensor([limit, -limit, 0.0, limit - 1], dtype=dtype)[None, None, :, None]
    k = q.clone().requires_grad_()
    found = tanh_sum(q, k, v)
    assert found is not None
    torch.testing.assert_close(found, plain(q, k, v))
    found.sum().backward()
    assert k.grad is not None
    assert k.grad.isfinite().all()
    for wrong in (1.01 * limit, -1.01 * limit, torch.inf, torch.nan):
        other = q.clone()
        other[0, 0, 2] = wrong
        assert tanh_sum(other, k, v) is None
        assert tanh_sum(q, other, v) is None


def test_the_score_takes_it_and_goes_without_beyond_the_limit() -> None:
    score = Additive(hidden=None, **SIZES).double()
    torch.nn.init.normal_(score.v)
    q, k, _ = parts()
    found = score.fused(q, k)
    assert found is not None
    torch.testing.assert_close(found, score.compare(q, k))
    assert score.fused(1000 * q, k) is None
    wide = Additive(hidden=7, **SIZES).double()
    for parameter in wide.parameters():
        torch.nn.init.normal_(parameter)
    prepared = wide.keys(k)
    found = wide.fused(q, prepared)
    assert found is not None
    torch.testing.assert_close(found, wide.compare(q, prepared))
