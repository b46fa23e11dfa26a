"""Normalisation over the width of every position: layer, rms, batch."""

from collections.abc import Callable

from torch import Tensor, nn


def layer_norm(dim: int, bias: bool, eps: float) -> nn.Module:
    """Ba et al. 2016, https://arxiv.org/abs/1607.06450."""
    return nn.LayerNorm(dim, eps=eps, bias=bias)


def rms_norm(dim: int, bias: bool, eps: float) -> nn.Module:
    """Zhang and Sennrich 2019, https://arxiv.org/abs/1910.07467; it has no bias."""
    return nn.RMSNorm(dim, eps=eps)


class BatchNorm(nn.Module):
    """Ioffe and Szegedy 2015, https://arxiv.org/abs/1502.03167, over examples and positions.

    In training every position is normalised by statistics of the whole batch, later positions
    included; in evaluation by running averages. It always has a bias.
    """

    def __init__(self, dim: int, *, eps: float):
        super().__init__()
        # A submodule, because trainer.sync_batchnorm=true replaces it by another one.
        self.norm = nn.BatchNorm1d(dim, eps=eps)

    def forward(self, x: Tensor) -> Tensor:
        normalised: Tensor = self.norm(x.flatten(0, 1))
        return normalised.view(x.shape)


NORMS: dict[str, Callable[[int, bool, float], nn.Module]] = {
    "layer": layer_norm,
    "rms": rms_norm,
    "batch": lambda dim, bias, eps: BatchNorm(dim, eps=eps),
}
