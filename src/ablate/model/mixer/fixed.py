"""Fixed weights: learned attention weights that do not depend on the input.

A fully connected layer over positions, as in Tolstikhin et al. 2021, "MLP-Mixer",
https://arxiv.org/abs/2105.01601, with one matrix for each head, between the value and output
projections of attention: attention without queries, keys and softmax.
"""

from collections.abc import Callable

import torch
from einops import rearrange
from torch import Tensor, nn

from ablate.errors import UserError
from ablate.model.layers.linear import Linear
from ablate.model.mixer import Mixer, Sizes


class FixedWeights(nn.Module):
    """`weight` h i j: the weight of position j in the output of position i, zero where masked."""

    def __init__(self, sizes: Sizes):
        super().__init__()
        self.heads, self.length, self.mask = sizes.heads, sizes.length, sizes.mask
        self.value = Linear(sizes.dim, sizes.dim, bias=sizes.bias, std=sizes.std)
        self.weight = nn.Parameter(torch.empty(sizes.heads, sizes.length, sizes.length))
        self.out = Linear(sizes.dim, sizes.dim, bias=sizes.bias, std=sizes.out_std)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Scaled so that the sum over all positions is as large as one value."""
        nn.init.normal_(self.weight, std=self.length**-0.5)

    def forward(
        self, x: Tensor, *, keep: Tensor | None = None, position: int | None = None
    ) -> Tensor:
        """b i d; keep: b i -> b i d, or b 1 d for `position` alone. UserError beyond the
        positions of training.
        """
        count = x.shape[1]
        if count > self.length:
            raise UserError(
                f"model.mixer=fixed has weights for the {self.length} positions it was trained"
                f" with, and this text has {count}; model.mixer=attention or convolution read any"
            )
        places = torch.arange(count, device=x.device)
        rows = slice(count) if position is None else slice(position, position + 1)
        weight = self.weight[:, rows, :count]
        weight = weight.masked_fill(~self.mask.allowed(places[rows], places), 0.0)
        values = self.value(x)
        if keep is not None:
            values = values.masked_fill(~keep[..., None], 0.0)
        values = rearrange(values, "b j (h k) -> b h j k", h=self.heads)
        return self.out(rearrange(weight.to(values.dtype) @ values, "b h i k -> b i (h k)"))


class Fixed(Mixer):
    """One matrix of positions x positions for every head."""

    def layer(self, attention: Callable[[], nn.Module], sizes: Sizes) -> nn.Module:
        return FixedWeights(sizes)
