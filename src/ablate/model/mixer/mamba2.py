"""Mamba-2 (state-space duality, SSD): a state-space model with one decay for each head.

Dao and Gu 2024, "Transformers are SSMs", sections 5 to 7, https://arxiv.org/abs/2405.21060: S_i =
exp(-a dt_i) S_i-1 + B_i (dt_i x_i)^T, y_i = S_i^T C_i + D x_i, out = W norm(y * silu(z)). B, C
(here keys and queries), of width `state`, are the same for all heads; they and x (the values) are
silu of short convolutions of maps of the input; dt: `Decay`.
"""

from typing import Annotated

import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from ablate.config.rules import Int, Width
from ablate.model.layers.layer import Context, LayerSpec
from ablate.model.layers.linear_mixer import Decay, Inputs, LinearMixer, Step
from ablate.model.layers.scale import Scale


class Mamba2(LinearMixer):
    """state: rows of the state of a head. expand: how many times of the model's width x is.
    short_conv: positions of the convolutions."""

    def __init__(
        self,
        place: LayerSpec,
        *,
        state: Width,
        expand: Annotated[int, Int(1, 16)],
        short_conv: Width,
    ):
        width = expand * place.dim
        super().__init__(place, key_width=state, value_width=width, short_conv=short_conv)
        self.norm = nn.RMSNorm(width, eps=1e-5)
        self.decay = Decay(place.dim, place.heads, std=place.std)
        self.skip = Scale(place.heads, start=1.0)  # D

    def step(self, inputs: Inputs, context: Context) -> Step:
        q, k, v, x = inputs
        g, dt = self.decay(x)
        q, k = (part[:, None].expand(-1, self.heads, -1, -1) for part in (q, k))
        v = self.split(v)
        return Step(q, k, dt * v, g, skip=self.skip()[:, None, None] * v)

    def read_out(
        self, y: Float[Tensor, "b h i v"], x: Float[Tensor, "b i d"]
    ) -> Float[Tensor, "b i d"]:
        assert self.gate is not None
        y = rearrange(y, "b h i v -> b i (h v)") * F.silu(self.gate(x))
        return self.out(self.norm(y))
