"""Squeeze and excitation (SE): sigmoid(W2 relu(W1 mean(x))) times each channel.

Hu et al. 2018, "Squeeze-and-excitation networks", section 3, https://arxiv.org/abs/1709.01507.
Attention over channels: how much of each is let through depends on the whole image.
"""

from jaxtyping import Float
from torch import Tensor

from ablate.config.rules import Count
from ablate.model.gate import Gate
from ablate.model.layers.linear import KaimingLinear


class SqueezeExcitation(Gate):
    """reduction: the hidden layer has channels / reduction units, at least one."""

    def __init__(self, channels: int, *, reduction: Count) -> None:
        super().__init__()
        hidden = max(1, channels // reduction)
        self.squeeze = KaimingLinear(channels, hidden)
        self.excite = KaimingLinear(hidden, channels)

    def forward(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y x"]:
        gate = self.excite(self.squeeze(x.mean((2, 3))).relu()).sigmoid()
        return x * gate[:, :, None, None]
