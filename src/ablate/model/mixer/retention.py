"""Retention: the sum of keys times values with a fixed decay for each head.

Sun et al. 2023, "Retentive network", sections 2.1 to 2.3, https://arxiv.org/abs/2307.08621: S_i =
gamma S_i-1 + k_i v_i^T, y_i = S_i^T q_i / sqrt(k), gamma = 1 - 2^(-5 - h) for head h from 0;
queries and keys are rotated by pos_enc=rotary (the paper: xPos); the output of a head is
normalized, and gated by silu.
"""

from dataclasses import replace
from typing import Annotated

import torch
from jaxtyping import Float
from torch import Tensor

from ablate.config.conflicts import Conflict
from ablate.config.rules import Int
from ablate.model.layers.layer import Context, LayerSpec
from ablate.model.layers.linear_mixer import Inputs, LinearMixer, Step


class Retention(LinearMixer):
    """expand: how many times of the model's width the values are, 2 in the paper."""

    traits = replace(LinearMixer.traits, reads_positions=True)
    conflicts = (
        Conflict(
            lambda c: (
                c.attribute("pos_enc", "acts_in") == "attention"
                and not c.declares("pos_enc", "rotates")
            ),
            "pos_enc={pos_enc} adds to scores, and model.mixer=retention has none; use"
            " pos_enc=rotary, or one that is added to the input",
        ),
    )

    decay: Float[Tensor, "h 1 1"]

    def __init__(self, place: LayerSpec, *, expand: Annotated[int, Int(1, 16)]):
        super().__init__(place, key_width=place.dim, value_width=expand * place.dim)
        gamma = 1 - 2.0 ** (-5 - torch.arange(place.heads))
        self.register_buffer("decay", gamma.log()[:, None, None], persistent=False)

    def step(self, inputs: Inputs, context: Context) -> Step:
        q, k, v, x = inputs
        q, k = self.split(q), self.split(k)
        i = context.positions(x)
        q, k = context.pos.rotate(q, k, i, i)
        g = self.decay.expand(len(x), -1, x.shape[1], -1)
        return Step(q * q.shape[-1] ** -0.5, k, self.split(v), g)
