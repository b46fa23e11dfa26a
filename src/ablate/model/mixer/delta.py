"""DeltaNet: a linear-attention state that replaces the value of a key instead of adding to it.

Schlag et al. 2021, "Linear transformers are secretly fast weight programmers", section 4.2,
https://arxiv.org/abs/2102.11174, as in Yang et al. 2024, https://arxiv.org/abs/2406.06484: S_i =
S_i-1 + beta_i k_i (v_i - S_i-1^T k_i)^T, y_i = S_i^T q_i / sqrt(k), beta = sigmoid(W x); queries
and keys have length 1; a short convolution and silu come before them and the values.
"""

from typing import ClassVar

import torch
import torch.nn.functional as F

from ablate.config.rules import Width
from ablate.model.layers.layer import Context, LayerSpec
from ablate.model.layers.linear import Linear
from ablate.model.layers.linear_mixer import Inputs, LinearMixer, Step


class DeltaNet(LinearMixer):
    """short_conv: positions of the convolutions; None: without them and silu."""

    gated: ClassVar[bool] = False

    def __init__(self, place: LayerSpec, *, short_conv: Width | None):
        super().__init__(place, key_width=place.dim, value_width=place.dim, short_conv=short_conv)
        self.beta = Linear(place.dim, place.heads, bias=False, std=place.std)

    def step(self, inputs: Inputs, context: Context) -> Step:
        q, k, v, x = inputs
        q, k = (F.normalize(self.split(part), dim=-1) for part in (q, k))
        beta = self.beta(x).sigmoid().mT
        g = torch.zeros_like(beta)[..., None]
        return Step(q * q.shape[-1] ** -0.5, k, self.split(v), g, beta)
