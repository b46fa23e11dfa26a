"""Modulation: a condition scales and shifts the input of a sublayer, and gates its output.

Adaptive layer norm (adaLN), Peebles and Xie 2023, "Scalable diffusion models with Transformers",
section 3.2, https://arxiv.org/abs/2212.09748: (1 + scale) norm(x) + shift, and with a gate
x + gate f(...). There one map of each block makes the values of all its sublayers; here each
sublayer has its part of that map. The norm before it keeps its own gain and bias, which DiT's has
not.
"""

from collections.abc import Callable

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from ablate.model.layers.linear import Linear


class Modulation(nn.Module):
    """gate: whether there is one. std: standard deviation of the initial weights; at 0 every scale,
    shift and gate starts at 0."""

    def __init__(self, dim: int, *, gate: bool, std: float):
        super().__init__()
        self.gate = gate
        self.linear = Linear(dim, (2 + gate) * dim, std=std)

    def forward(
        self, x: Float[Tensor, "b i d"], condition: Float[Tensor, "b d"]
    ) -> tuple[Float[Tensor, "b i d"], Float[Tensor, "b 1 d"] | None]:
        """The modulated input of the sublayer, and the gate."""
        shift, scale, *gate = self.linear(F.silu(condition))[:, None].chunk(2 + self.gate, dim=-1)
        return (1 + scale) * x + shift, gate[0] if gate else None


MakeModulation = Callable[..., Modulation]
