"""Dynamic tanh (DyT): gain * tanh(alpha x) + bias, without statistics.

Zhu et al. 2025, "Transformers without normalization", https://arxiv.org/abs/2503.10622.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ablate.config.rules import Positive
from ablate.model.norm_type import UNUSED


class DyT(nn.Module):
    """alpha: one learned number, which starts at this value. `eps` has nothing to do."""

    images = False
    conflicts = (UNUSED,)

    def __init__(self, dim: int, *, bias: bool, eps: float, alpha: Positive) -> None:
        super().__init__()
        self.initial = alpha
        self.alpha = nn.Parameter(torch.tensor(float(alpha)))
        self.gain = nn.Parameter(torch.ones(dim))
        self.shift = nn.Parameter(torch.zeros(dim)) if bias else None

    def reset_parameters(self) -> None:
        nn.init.constant_(self.alpha, self.initial)
        nn.init.ones_(self.gain)
        if self.shift is not None:
            nn.init.zeros_(self.shift)

    def forward(self, x: Float[Tensor, "b i d"]) -> Float[Tensor, "b i d"]:
        y = self.gain * (self.alpha * x).tanh()
        return y if self.shift is None else y + self.shift
