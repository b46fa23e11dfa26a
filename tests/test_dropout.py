"""Dropout: its rate and its scale, on any tensor and on attention weights."""

import pytest
import torch
from make_model import kernel
from test_kernel import KERNELS, make, make_pos, make_score

from ablate.kernel import Attend, Parts
from ablate.random.dropout import Dropout

NAMES = ["reference", *KERNELS]


def repeated(times: int, *, dropout: float) -> Attend:
    """One example `times` over, so that every copy has dropout of its own."""
    attend = make("scaled_dot", "alibi", "causal")
    for name in ("q", "k", "v"):
        one = getattr(attend, name).detach()[:1]
        setattr(attend, name, one.repeat(times, 1, 1, 1).requires_grad_())
    attend.dropout, attend.stream = dropout, torch.tensor(7)
    return attend


@pytest.mark.parametrize("name", NAMES)
def test_dropout_keeps_the_expectation(name: str) -> None:
    times, run = 4000, KERNELS.get(name, kernel("reference"))
    run = run.resolve(Parts(make_score("scaled_dot"), make_pos("alibi")))
    attend = repeated(times, dropout=0.3)
    with torch.no_grad():
        kept, dropped = run(repeated(1, dropout=0.0)), run(attend)
    error = dropped.std(0) / times**0.5
    assert error.min() > 0  # something was dropped in every row
    assert ((dropped.mean(0) - kept[0]).abs() < 5 * error).all()


@pytest.mark.parametrize("shape", [(1001,), (3, 5, 7), ()])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_units_are_dropped_or_scaled(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = torch.ones(shape, dtype=dtype, requires_grad=True)
    out = Dropout(0.25)(x)
    assert out.shape == x.shape
    assert out.dtype == dtype
    assert set(out.flatten().tolist()) <= {0.0, (1 / torch.tensor(0.75, dtype=dtype)).item()}
    (gradient,) = torch.autograd.grad(out.sum(), x)
    assert torch.equal(gradient, out)


@pytest.mark.parametrize("rate", [0.01, 0.3, 0.9])
def test_units_are_dropped_at_their_rate_and_for_themselves(rate: float) -> None:
    torch.manual_seed(0)
    kept = (Dropout(rate)(torch.ones(1000, 1000)) > 0).double()
    sd = (rate * (1 - rate)) ** 0.5
    assert kept.mean().item() == pytest.approx(1 - rate, abs=5 * sd / 1000)
    for axis in (0, 1):  # means of a thousand units spread as means of independent ones
        assert kept.mean(axis).std().item() == pytest.approx(sd / 1000**0.5, rel=0.15)
    for apart in (1, 2, 4):  # units drawn in one number of 64 bits, and beside it
        both = (kept[:, apart:] * kept[:, :-apart]).mean().item()
        assert both == pytest.approx((1 - rate) ** 2, abs=6 * sd / 1000)
