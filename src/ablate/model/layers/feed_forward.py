"""The position-wise feed-forward network: W2 f(W1 x), or gated W2 (f(W1 x) * V x).

Vaswani et al. 2017, section 3.3, https://arxiv.org/abs/1706.03762 (ReLU); Hendrycks and Gimpel
2016, https://arxiv.org/abs/1606.08415 (GELU; gelu_tanh is section 2's approximation, used by
GPT-2); Shazeer 2020, "GLU variants improve Transformer", https://arxiv.org/abs/2002.05202 (gated):
their hidden width is cut to two thirds, so that three matrices have as many parameters as two.
"""

from collections.abc import Callable
from functools import partial

import torch.nn.functional as F
from torch import Tensor, nn

from ablate.model.layers.linear import STD, Linear

# What `model.ffn` may name, except none: the activation, and whether it gates a second map.
ACTIVATIONS: dict[str, tuple[Callable[[Tensor], Tensor], bool]] = {
    "gelu": (F.gelu, False),
    "gelu_tanh": (partial(F.gelu, approximate="tanh"), False),
    "relu": (F.relu, False),
    "swiglu": (F.silu, True),
    "geglu": (F.gelu, True),
}


class FeedForward(nn.Module):
    """`hidden` is the width of the ungated network; gated ones get two thirds of it."""

    def __init__(
        self,
        dim: int,
        *,
        hidden: int,
        kind: str,
        bias: bool,
        std: float = STD,
        out_std: float = STD,
    ):
        super().__init__()
        self.activation, gated = ACTIVATIONS[kind]
        hidden = round(2 * hidden / 3) if gated else hidden
        self.up = Linear(dim, hidden, bias=bias, std=std)
        self.gate = Linear(dim, hidden, bias=bias, std=std) if gated else None
        self.down = Linear(hidden, dim, bias=bias, std=out_std)

    def forward(self, x: Tensor) -> Tensor:
        if self.gate is None:
            return self.down(self.activation(self.up(x)))
        return self.down(self.activation(self.gate(x)) * self.up(x))
