"""Gated linear attention (GLA): a decay for each channel of the keys that depends on the input.

Yang et al. 2023, "Gated linear attention transformers with hardware-efficient training", section
4, https://arxiv.org/abs/2312.06635: S_i = diag(a_i) S_i-1 + k_i v_i^T, y_i = S_i^T q_i / sqrt(k),
a = sigmoid(W2 W1 x + b)^(1/16), with keys half of the model's width and W1 of rank 16; the output
of a head is normalized, and gated by silu.
"""

import torch.nn.functional as F
from torch import nn

from ablate.config.conflicts import Conflict
from ablate.config.rules import Width
from ablate.model.layers.layer import Context, LayerSpec
from ablate.model.layers.linear import Linear
from ablate.model.layers.linear_mixer import Inputs, LinearMixer, Step

TEMPERATURE = 16


class GatedLinearAttention(LinearMixer):
    """rank: of the map from the input to the decays."""

    conflicts = (
        Conflict(
            lambda c: c("model.dim") % (2 * c("model.heads")) != 0,
            "model.mixer=gla has keys of half the model's width: model.dim={model.dim} must be a"
            " multiple of 2 x model.heads={model.heads}",
        ),
    )

    def __init__(self, place: LayerSpec, *, rank: Width):
        width = place.dim // 2
        super().__init__(place, key_width=width, value_width=place.dim)
        self.decay = nn.Sequential(
            Linear(place.dim, rank, bias=False, std=place.std), Linear(rank, width, std=rank**-0.5)
        )

    def step(self, inputs: Inputs, context: Context) -> Step:
        q, k, v, x = inputs
        g = self.split(F.logsigmoid(self.decay(x)) / TEMPERATURE)
        q = self.split(q)
        return Step(q * q.shape[-1] ** -0.5, self.split(k), self.split(v), g)
