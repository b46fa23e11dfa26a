"""LayerScale: x + g * y with a learned factor g for each feature.

Touvron et al. 2021, "Going deeper with image transformers", section 2,
https://arxiv.org/abs/2103.17239.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ablate.config.rules import Positive
from ablate.model.connection import Connection


class LayerScale(Connection):
    """initial: of every factor; the paper has 0.1 up to 18 blocks, 1e-5 for 24, 1e-6 for more."""

    def __init__(self, dim: int, *, initial: Positive, **position: Any) -> None:
        super().__init__(dim, **position)
        self.initial = initial
        self.gain = nn.Parameter(torch.full((dim,), float(initial)))

    def reset_parameters(self) -> None:
        nn.init.constant_(self.gain, self.initial)

    def weighed(self, y: Float[Tensor, "b i {self.dim}"]) -> Float[Tensor, "b i {self.dim}"]:
        return self.gain * y
