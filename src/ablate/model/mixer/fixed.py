"""Fixed weights: attention whose weights do not depend on what is read, but are learned.

A fully connected layer over positions, as in Tolstikhin et al. 2021, "MLP-Mixer",
https://arxiv.org/abs/2105.01601, with one matrix for each head and around it the value and output
maps of attention: what is left when queries, keys and softmax are taken away.
"""

from collections.abc import Callable

import torch
from einops import rearrange
from torch import Tensor, nn

from ablate.errors import UserError
from ablate.model.layers.linear import Linear
from ablate.model.mixer import Mixer, Sizes


class FixedWeights(nn.Module):
    """`weight` h i j: what position i takes of position j, where the mask lets it look."""

    def __init__(self, sizes: Sizes):
        super().__init__()
        self.heads, self.length, self.mask = sizes.heads, sizes.length, sizes.mask
        self.value = Linear(sizes.dim, sizes.dim, bias=sizes.bias, std=sizes.std)
        self.weight = nn.Parameter(torch.empty(sizes.heads, sizes.length, sizes.length))
        self.out = Linear(sizes.dim, sizes.dim, bias=sizes.bias, std=sizes.out_std)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """As large as lets the sum over all positions be as large as one value."""
        nn.init.normal_(self.weight, std=self.length**-0.5)

    def forward(self, x: Tensor, *, keep: Tensor | None = None, only: int | None = None) -> Tensor:
        """b i d; keep: b i -> b i d, or, of the position `only`, b 1 d. UserError beyond the
        positions of training.
        """
        count = x.shape[1]
        if count > self.length:
            raise UserError(
                f"model.mixer=fixed has weights for the {self.length} positions it was trained"
                f" with, and this text has {count}; model.mixer=attention or convolution read any"
            )
        places = torch.arange(count, device=x.device)
        asked = slice(count) if only is None else slice(only, only + 1)
        weight = self.weight[:, asked, :count]
        weight = weight.masked_fill(~self.mask.allowed(places[asked], places), 0.0)
        values = self.value(x)
        if keep is not None:
            values = values.masked_fill(~keep[..., None], 0.0)
        values = rearrange(values, "b j (h k) -> b h j k", h=self.heads)
        return self.out(rearrange(weight.to(values.dtype) @ values, "b h i k -> b i (h k)"))


class Fixed(Mixer):
    """One matrix of positions x positions for every head."""

    def layer(self, attention: Callable[[], nn.Module], sizes: Sizes) -> nn.Module:
        return FixedWeights(sizes)
