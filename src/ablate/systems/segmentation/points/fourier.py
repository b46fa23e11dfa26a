"""Random Fourier features: sin(2 pi G p), cos(2 pi G p) of a position p from -1 to 1 on each axis.

Tancik et al. 2020, "Fourier features let networks learn high frequency functions in low dimensional
domains", section 2, https://arxiv.org/abs/2006.10739. G is sampled once and is not trained.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ablate.config.rules import Positive


class Fourier(nn.Module):
    """scale: the standard deviation of G."""

    def __init__(self, *, dim: int, image_size: tuple[int, int], scale: Positive) -> None:
        super().__init__()
        self.scale = scale
        self.frequencies = nn.Parameter(torch.empty(2, dim // 2), requires_grad=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.frequencies, std=self.scale)

    def forward(self, positions: Float[Tensor, "*n 2"]) -> Float[Tensor, "*n d"]:
        angles = 2 * math.pi * ((2 * positions - 1) @ self.frequencies)
        return torch.cat([angles.sin(), angles.cos()], dim=-1)
