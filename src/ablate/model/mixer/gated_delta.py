"""Gated DeltaNet: the delta rule on a state that decays as Mamba-2's.

Yang et al. 2024, "Gated delta networks", section 3, https://arxiv.org/abs/2412.06464: S_i = a_i
(I - beta_i k_i k_i^T) S_i-1 + beta_i k_i v_i^T, y_i = S_i^T q_i / sqrt(k); a: `Decay`; beta,
queries, keys and values: as model.mixer=delta; head outputs are normalized, and gated by silu.
Keys and values are of the model's width (the paper: 3/4 and 3/2 of it).
"""

from typing import ClassVar

from ablate.config.rules import Width
from ablate.model.layers.layer import Context, LayerSpec
from ablate.model.layers.linear_mixer import Decay, Inputs, Step
from ablate.model.mixer.delta import DeltaNet


class GatedDeltaNet(DeltaNet):
    gated: ClassVar[bool] = True

    def __init__(self, place: LayerSpec, *, short_conv: Width | None):
        super().__init__(place, short_conv=short_conv)
        self.decay = Decay(place.dim, place.heads, std=place.std)

    def step(self, inputs: Inputs, context: Context) -> Step:
        return super().step(inputs, context)._replace(g=self.decay(inputs.x)[0])
