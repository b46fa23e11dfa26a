"""Layer norm: the values of a position minus their mean, over their standard deviation.

Ba et al. 2016, https://arxiv.org/abs/1607.06450.
"""

from torch import nn


class LayerNorm(nn.LayerNorm):
    """torch's."""

    images = True

    def __init__(self, dim: int, *, bias: bool, eps: float) -> None:
        super().__init__(dim, eps=eps, bias=bias)

    @staticmethod
    def of_images(channels: int) -> nn.Module:
        """Over channels, rows and columns of an image, with a gain for each channel."""
        return nn.GroupNorm(1, channels)
