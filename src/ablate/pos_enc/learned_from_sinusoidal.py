"""Learned from sinusoidal: x -> x + W p, with p the sinusoids of a position and W a learned map.

p is that of Vaswani et al. 2017, section 3.5, https://arxiv.org/abs/1706.03762. This encoding lies
between pos_enc=sinusoidal (W is the identity) and pos_enc=learned (which knows nothing of the order
of positions), and takes any length. W is initialized so that W p is as large as the initial vectors
of pos_enc=learned.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ablate.config.rules import Positive
from ablate.pos_enc import PosEnc
from ablate.pos_enc.sinusoidal import waves

STD = 0.02  # of the vectors of pos_enc=learned at the start


class LearnedFromSinusoidal(PosEnc):
    """A linear map of the sines and cosines of the position, added to the input."""

    acts_in = "input"

    def __init__(self, *, base: Positive, **sizes: Any) -> None:
        super().__init__(**sizes)
        self.base = base
        self.map = nn.Parameter(torch.empty(self.dim, self.dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        # The squares of the sinusoids of a position sum to d / 2.
        nn.init.normal_(self.map, std=STD * (2 / self.dim) ** 0.5)

    def embed(
        self, x: Float[Tensor, "b i {self.dim}"], start: int = 0
    ) -> Float[Tensor, "b i {self.dim}"]:
        positions = torch.arange(start, start + x.shape[1], device=x.device)
        fixed = waves(positions, dim=self.dim, base=self.base, dtype=self.map.dtype)
        return x + (fixed @ self.map).to(x.dtype)
