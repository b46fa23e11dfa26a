"""Fixed weights: learned attention weights that do not depend on the input.

A fully connected layer over positions, as in Tolstikhin et al. 2021, "MLP-Mixer",
https://arxiv.org/abs/2105.01601, with one matrix for each head, between the value and output
projections of attention: attention without queries, keys and softmax.
"""

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from ablate.config.conflicts import Conflict
from ablate.errors import UserError
from ablate.model.layers.layer import Context, Layer, LayerSpec, LayerTraits
from ablate.model.layers.linear import Linear


class Fixed(Layer):
    """`weight` h i j: the weight of position j in the output of position i, zero if masked."""

    traits = LayerTraits(reads_mask=True, caches=True)
    conflicts = (
        Conflict(
            lambda c: c("data.documents") != "ignore",
            "model.mixer={model.mixer} has a weight for each pair of positions, and documents"
            " begin anywhere in a row; set data.documents=ignore",
        ),
        Conflict(
            lambda c: c.trait("model", "source_first"),
            "model.mixer=fixed has a weight for each pair of positions, and those of a target in"
            " model={model} depend on the length of its source; use model.mixer=attention or"
            " convolution",
        ),
    )

    def __init__(self, place: LayerSpec):
        super().__init__()
        self.heads, self.length, self.mask = place.heads, place.length, place.mask
        self.value = Linear(place.dim, place.dim, bias=place.bias, std=place.std)
        self.weight = nn.Parameter(torch.empty(place.heads, place.length, place.length))
        self.out = Linear(place.dim, place.dim, bias=place.bias, std=place.out_std)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Scaled so that the sum over all positions is as large as one value."""
        nn.init.normal_(self.weight, std=self.length**-0.5)

    def forward(self, x: Float[Tensor, "b i d"], context: Context) -> Float[Tensor, " b #i d"]:
        """UserError beyond the positions of training."""
        count = context.start + x.shape[1]
        if count > self.length:
            raise UserError(
                f"model.mixer=fixed has weights for the {self.length} positions it was trained"
                f" with, and this text has {count}; model.mixer=attention or convolution read any"
            )
        positions = torch.arange(count, device=x.device)
        first, last = context.start, count
        if context.position is not None:
            first, last = context.position, context.position + 1
        weight = self.weight[:, first:last, :count]
        weight = weight.masked_fill(~self.mask.allowed(positions[first:last], positions), 0.0)
        values = self.value(x)
        if context.keep is not None:
            values = values.masked_fill(~context.keep[..., None], 0.0)
        if (before := context.recall(self)) is not None:
            values = torch.cat([before[0], values], dim=1)
        context.remember(self, values)
        values = rearrange(values, "b j (h k) -> b h j k", h=self.heads)
        return self.out(rearrange(weight.to(values.dtype) @ values, "b h i k -> b i (h k)"))
