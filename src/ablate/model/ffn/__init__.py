"""The position-wise feed-forward network: W2 f(W1 x), or gated W2 (f(V x) * W1 x). One per file.

Vaswani et al. 2017, section 3.3, https://arxiv.org/abs/1706.03762; gated: Shazeer 2020, "GLU
variants improve Transformer", https://arxiv.org/abs/2002.05202.
"""

from collections.abc import Callable
from typing import Any, ClassVar

from jaxtyping import Float
from torch import Tensor

from ablate.model.layers.layer import Context, Layer, LayerTraits
from ablate.model.layers.linear import STD, Linear

MakeFeedForward = Callable[..., Layer | None]


class FeedForward(Layer):
    """hidden: width of the ungated network; gated ones get two thirds of it, so
    that three matrices have as many parameters as two."""

    traits = LayerTraits(mixes=False)
    gated: ClassVar[bool] = False
    activation: ClassVar[Callable[..., Any]]  # f: *n -> *n

    def __init__(
        self, dim: int, *, hidden: int, bias: bool, std: float = STD, out_std: float = STD
    ) -> None:
        super().__init__()
        hidden = round(2 * hidden / 3) if self.gated else hidden
        self.up = Linear(dim, hidden, bias=bias, std=std)
        self.gate = Linear(dim, hidden, bias=bias, std=std) if self.gated else None
        self.down = Linear(hidden, dim, bias=bias, std=out_std)

    def forward(
        self, x: Float[Tensor, "*b d"], context: Context | None = None
    ) -> Float[Tensor, "*b d"]:
        if self.gate is None:
            return self.down(self.activation(self.up(x)))
        return self.down(self.activation(self.gate(x)) * self.up(x))
