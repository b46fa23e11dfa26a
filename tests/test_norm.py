"""Norms: torch's, over the width of every position or over all of them."""

import pytest
import torch
from make_model import normal, options, part
from torch import nn

B, N, D = 2, 6, 12


def made(kind: str, *, bias: bool = True, eps: float = 1e-5) -> nn.Module:
    norm: nn.Module = part("model.norm_type", kind)(D, bias=bias, eps=eps)
    return norm


def test_norms_equal_torchs() -> None:
    x = 3 + 2 * normal(B, N, D)
    for eps in (1e-5, 0.5):
        layer = made("layer", eps=eps).double()
        torch.testing.assert_close(layer(x), nn.functional.layer_norm(x, (D,), eps=eps))
        rms = made("rms", eps=eps).double()
        torch.testing.assert_close(rms(x), x / (x.square().mean(-1, keepdim=True) + eps).sqrt())
        batch = made("batch", eps=eps).double()
        flat = nn.BatchNorm1d(D, eps=eps).double()
        torch.testing.assert_close(batch(x), flat(x.flatten(0, 1)).unflatten(0, (B, N)))
        torch.testing.assert_close(
            batch.eval()(x), flat.eval()(x.flatten(0, 1)).unflatten(0, (B, N))
        )


@pytest.mark.parametrize("bias", [True, False])
def test_norms_have_a_bias_where_they_can(bias: bool) -> None:
    names = {
        kind: {n for n, _ in made(kind, bias=bias).named_parameters()}
        for kind in options("model.norm_type")
    }
    assert names["layer"] == ({"weight", "bias"} if bias else {"weight"})
    assert names["rms"] == {"weight"}
    assert names["batch"] == {"norm.weight", "norm.bias"}  # bias=false is refused: test_pairs.py


def test_batch_norm_can_be_that_of_several_processes() -> None:
    """What Lightning does for trainer.sync_batchnorm=true, which trains on GPUs alone."""
    x = 3 + 2 * normal(B, N, D)
    batch = made("batch").double()
    batch(x)  # averages
    expected = batch.eval()(x)
    synced = nn.SyncBatchNorm.convert_sync_batchnorm(batch)
    assert any(isinstance(part, nn.SyncBatchNorm) for part in synced.modules())
    torch.testing.assert_close(synced(x), expected)
