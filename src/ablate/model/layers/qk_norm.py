"""QK normalization: queries and keys are normalized before they are compared, those of each head
separately, or those of all heads together (rms_all).

l2: Henry et al. 2020, https://arxiv.org/abs/2010.04245; layer: Dehghani et al. 2023, "Scaling
vision transformers to 22 billion parameters", section 2, https://arxiv.org/abs/2302.05442; rms:
Qwen3, section 2, https://arxiv.org/abs/2505.09388; rms_all: OLMo 2, section 3.3,
https://arxiv.org/abs/2501.00656, whose code norms the whole projections. Scores can then not grow
with the weights of the projections, which high learning rates drive up (Wortsman et al. 2023,
https://arxiv.org/abs/2309.14322).
"""

import math
from typing import Literal

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from ablate.model.attention.cosine import scaled

QKNorm = Literal["l2", "rms", "rms_all", "layer"]


class UnitLength(nn.Module):
    """Vectors of length 1, times g sqrt(width) with g learned per head if `heads` is set.

    With model.attention=scaled_dot, which divides by sqrt(width), the score is g cos(q, k). g
    starts at log2(length^2 - length), the value of Henry et al. (section 3) for texts of `length`.
    """

    def __init__(self, width: int, *, heads: int | None, length: int):
        super().__init__()
        self.root = math.sqrt(width)
        self.initial = math.log2(max(length, 2) * (max(length, 2) - 1))
        self.factor = None if heads is None else nn.Parameter(torch.empty(heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        if self.factor is not None:
            nn.init.constant_(self.factor, self.initial)

    def forward(self, x: Float[Tensor, "b h i k"]) -> Float[Tensor, "b h i k"]:
        if self.factor is None:
            return scaled(x).to(x.dtype)
        return scaled(x, self.root * self.factor[:, None, None]).to(x.dtype)


class AllHeads(nn.RMSNorm):
    """RMS norm over the features of all heads together, each with its own gain."""

    def __init__(self, width: int, *, heads: int):
        super().__init__(heads * width)

    def forward(self, x: Float[Tensor, "b h i k"]) -> Float[Tensor, "b h i k"]:
        whole = super().forward(rearrange(x, "b h i k -> b i (h k)"))
        return rearrange(whole, "b i (h k) -> b h i k", h=x.shape[1])


def qk_norms(
    kind: QKNorm | None, width: int, *, heads: int, kv_heads: int, length: int
) -> tuple[nn.Module, nn.Module]:
    """The norms of the queries, b heads i k, and of the keys, b kv_heads j k; None: they do
    nothing."""
    if kind is None:
        return nn.Identity(), nn.Identity()
    if kind == "l2":
        return (
            UnitLength(width, heads=heads, length=length),
            UnitLength(width, heads=None, length=length),
        )
    if kind == "rms_all":
        return AllHeads(width, heads=heads), AllHeads(width, heads=kv_heads)
    if kind == "rms":
        return nn.RMSNorm(width), nn.RMSNorm(width)
    # Without a bias, as in Dehghani et al. 2023.
    return nn.LayerNorm(width, bias=False), nn.LayerNorm(width, bias=False)
