"""Convolution: every relative position within `size` has its own transform.

On text as in Gehring et al. 2017, "Convolutional sequence to sequence learning",
https://arxiv.org/abs/1705.03122; on images as in Ramachandran et al. 2019, "Stand-alone
self-attention in vision models", equation 1, https://arxiv.org/abs/1906.05909, which compares
attention to it. depthwise: the transform is one number per channel (Chollet 2017,
https://arxiv.org/abs/1610.02357), else a matrix.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from ablate.model.mixer import Mixer, Sizes


class RelativeTransforms(nn.Module):
    """A convolution over the positions of a text, with a causal mask only over earlier ones and the
    same one, or centred over the rows and columns of an image.

    `weight`: d inputs, then one axis or two of relative positions.
    """

    def __init__(self, sizes: Sizes, *, size: int, depthwise: bool):
        super().__init__()
        self.grid, self.size = sizes.grid, size
        self.groups = sizes.dim if depthwise else 1
        self.causal = not sizes.mask.look_ahead
        axes = 1 if sizes.grid is None else 2
        self.weight = nn.Parameter(torch.empty(sizes.dim, sizes.dim // self.groups, *[size] * axes))
        self.bias = nn.Parameter(torch.empty(sizes.dim)) if sizes.bias else None
        # The output, added to the residual stream, starts smaller than the input, as in attention.
        self.gain = sizes.out_std / sizes.std
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Scaled so that an output is as large as an input, times `gain`."""
        nn.init.normal_(self.weight, std=self.gain * self.weight[0].numel() ** -0.5)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(
        self, x: Tensor, *, keep: Tensor | None = None, position: int | None = None
    ) -> Tensor:
        """b i d; keep: b i -> b i d, or b 1 d for `position` alone."""
        mixed = self._mix(x, keep)
        return mixed if position is None else mixed[:, position : position + 1]

    def _mix(self, x: Tensor, keep: Tensor | None) -> Tensor:
        if keep is not None:
            x = x.masked_fill(~keep[..., None], 0.0)
        if self.grid is not None:
            y = rearrange(x, "b (r c) d -> b d r c", r=self.grid[0])
            y = F.conv2d(y, self.weight, self.bias, padding="same", groups=self.groups)
            return rearrange(y, "b d r c -> b (r c) d")
        before = self.size - 1 if self.causal else self.size // 2
        y = F.pad(x.mT, (before, self.size - 1 - before))
        return F.conv1d(y, self.weight, self.bias, groups=self.groups).mT


class Convolution(Mixer):
    """size: kernel size along each axis, an odd number; with a causal mask the last `size`."""

    def __init__(self, *, size: int, depthwise: bool) -> None:
        self.size, self.depthwise = size, depthwise

    def layer(self, attention: Callable[[], nn.Module], sizes: Sizes) -> nn.Module:
        return RelativeTransforms(sizes, size=self.size, depthwise=self.depthwise)
