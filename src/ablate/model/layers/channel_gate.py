"""A gate that reads only the first channels of its input, so that it costs next to nothing.

As the gates of modded-nanogpt (https://github.com/KellerJordan/modded-nanogpt) and nanochat
(https://github.com/karpathy/nanochat).
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

CHANNELS = 12  # that modded-nanogpt and nanochat read


class ChannelGate(nn.Module):
    """sigmoid(W x) of the first channels of x, W starting at zero: `count` numbers, at first 1/2.

    W has one axis: its inputs do not grow with the width of the model, so neither muP
    nor Muon treats it as a matrix (`Model.roles`).
    """

    def __init__(self, dim: int, count: int):
        super().__init__()
        self.count, self.channels = count, min(CHANNELS, dim)
        self.weight = nn.Parameter(torch.zeros(count * self.channels))

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.weight)

    def forward(self, x: Float[Tensor, "*n d"]) -> Float[Tensor, "*n {self.count}"]:
        weight = self.weight.unflatten(0, (self.count, self.channels))
        return F.linear(x[..., : self.channels], weight).sigmoid()
