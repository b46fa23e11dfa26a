"""SwiGLU with factors of its hidden features: W2 (s_u u SiLU(s_v sqrt(d) v)), s_u and s_v learned.

nGPT: Loshchilov et al. 2024, section 2.4.2, equations 20 and 21, https://arxiv.org/abs/2410.01131.
The product of a unit vector of width d and a row of length 1 is about 1 / sqrt(d), and SiLU is
almost linear near zero; hence the root.
"""

from typing import Any

from jaxtyping import Float
from torch import Tensor

from ablate.model.ffn.swiglu import SwiGLU
from ablate.model.layers.layer import Context
from ablate.model.layers.scale import Scale


class ScaledSwiGLU(SwiGLU):
    """u = `up` x, v = `gate` x; a factor for each hidden feature of both, at first 1."""

    def __init__(self, dim: int, **sizes: Any) -> None:
        super().__init__(dim, **sizes)
        hidden = self.up.out_features
        self.up_scale = Scale(hidden, start=1.0)
        self.gate_scale = Scale(hidden, start=1.0, initial=dim**0.5)

    def forward(
        self, x: Float[Tensor, "*b d"], context: Context | None = None
    ) -> Float[Tensor, "*b d"]:
        assert self.gate is not None
        gate = self.activation(self.gate_scale() * self.gate(x))
        return self.down(gate * self.up_scale() * self.up(x))
