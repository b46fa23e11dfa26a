"""Batch norm: every feature by its mean and deviation over examples and positions.

Ioffe and Szegedy 2015, https://arxiv.org/abs/1502.03167.
"""

from torch import Tensor, nn


class BatchNorm(nn.Module):
    """In training every position is normalised by statistics of the whole batch, later positions
    included; in evaluation by running averages. It always has a bias.
    """

    images = True
    # Whether examples and positions have an effect on each other.
    mixes_examples = True

    def __init__(self, dim: int, *, bias: bool, eps: float) -> None:
        super().__init__()
        # A submodule, because trainer.sync_batchnorm=true replaces it by another one.
        self.norm = nn.BatchNorm1d(dim, eps=eps)

    def forward(self, x: Tensor) -> Tensor:
        normalised: Tensor = self.norm(x.flatten(0, 1))
        return normalised.view(x.shape)

    @staticmethod
    def of_images(channels: int) -> nn.Module:
        return nn.BatchNorm2d(channels)
