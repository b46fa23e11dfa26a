"""Convolution: every relative position within `size` has its own transform.

On text as in Gehring et al. 2017, "Convolutional sequence to sequence learning",
https://arxiv.org/abs/1705.03122; on images as in Ramachandran et al. 2019, "Stand-alone
self-attention in vision models", equation 1, https://arxiv.org/abs/1906.05909, which compares
attention to it. depthwise: the transform is one number per channel (Chollet 2017,
https://arxiv.org/abs/1610.02357), else a matrix.
"""

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from ablate.config.conflicts import Conflict
from ablate.config.rules import Width
from ablate.model.layers.layer import Context, Layer, LayerSpec, LayerTraits
from ablate.model.layers.short_conv import within


class Convolution(Layer):
    """A convolution over the positions of a text, with a causal mask only over earlier ones and the
    same one, or centered over the rows and columns of an image.

    size: kernel size along each axis, an odd number; with a causal mask the last `size`. `weight`:
    d inputs, then one axis or two of relative positions.
    """

    conflicts = (
        Conflict(
            lambda c: c("model.mixer.size") % 2 == 0,
            "model.mixer.size={model.mixer.size} must be odd, so that the kernel has a center",
        ),
        Conflict(
            lambda c: c("model.pool") == "class",
            "model.mixer=convolution convolves the grid of patches, and the class token has no"
            " position in it; set model.pool=mean",
        ),
        Conflict(
            lambda c: (
                c.trait("model", "has_grid") and c.attribute("model.mask", "looks_ahead") is False
            ),
            "causal masking is not defined for the two-dimensional model.mixer=convolution; use"
            " model.mask=none",
        ),
    )
    traits = LayerTraits(caches=True)

    def __init__(self, place: LayerSpec, *, size: Width, depthwise: bool):
        super().__init__()
        self.grid, self.size = place.grid, size
        self.groups = place.dim if depthwise else 1
        self.looks_ahead = place.mask.look_ahead
        axes = 1 if place.grid is None else 2
        self.weight = nn.Parameter(torch.empty(place.dim, place.dim // self.groups, *[size] * axes))
        self.bias = nn.Parameter(torch.empty(place.dim)) if place.bias else None
        # The output, added to the residual stream, starts smaller than the input, as in attention.
        self.gain = place.out_std / place.std
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Scaled so that an output is as large as an input, times `gain`."""
        nn.init.normal_(self.weight, std=self.gain * self.weight[0].numel() ** -0.5)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, x: Float[Tensor, "b i d"], context: Context) -> Float[Tensor, " b #i d"]:
        if context.keep is not None:
            keep = context.keep[:, -x.shape[1] :]  # without those of a cache
            x = x.masked_fill(~keep[..., None], 0.0)
        mixed = self._along_rows_and_columns(x) if self.grid else self._along_text(x, context)
        first = context.position
        return mixed if first is None else mixed[:, first : first + 1]

    def _along_rows_and_columns(self, x: Float[Tensor, "b i d"]) -> Float[Tensor, "b i d"]:
        assert self.grid is not None
        y = rearrange(x, "b (r c) d -> b d r c", r=self.grid[0])
        y = F.conv2d(y, self.weight, self.bias, padding="same", groups=self.groups)
        return rearrange(y, "b d r c -> b (r c) d")

    def _along_text(self, x: Float[Tensor, "b i d"], context: Context) -> Float[Tensor, "b i d"]:
        before = self.size // 2 if self.looks_ahead else self.size - 1
        if (state := context.recall(self)) is None:
            x = F.pad(x, (0, 0, before, 0))
        else:
            x = torch.cat([*state, x], dim=1)
        context.remember(self, x[:, x.shape[1] - before :])
        after = self.size - 1 - before
        x = F.pad(x, (0, 0, 0, after))
        if (documents := context.documents) is not None:
            y = within(documents.near(before, after), x, self.weight, self.groups)
            return y if self.bias is None else y + self.bias
        return F.conv1d(x.mT, self.weight, self.bias, groups=self.groups).mT
