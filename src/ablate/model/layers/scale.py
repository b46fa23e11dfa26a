"""Learned factors with a scaled learning rate: the scaling parameters of nGPT.

Loshchilov et al. 2024, "nGPT: normalized Transformer with representation learning on the
hypersphere", section 2.5, https://arxiv.org/abs/2410.01131.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn


class Scale(nn.Module):
    """`width` factors that start at `initial`.

    The trained numbers start at `start`, and are multiplied by initial / start. The steps of Adam
    are of one size for all parameters: the smaller `start`, the larger the share of a factor that a
    step changes. At 1 / sqrt(d) it changes as fast as an entry of a vector of length 1 and width d.
    """

    def __init__(self, width: int, *, start: float, initial: float = 1.0):
        super().__init__()
        self.start, self.ratio = start, initial / start
        self.weight = nn.Parameter(torch.empty(width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.constant_(self.weight, self.start)

    def forward(self) -> Float[Tensor, " width"]:
        return self.ratio * self.weight
