"""Learned: x -> x + p[n], with a vector p[n] learned per position.

Gehring et al. 2017, "Convolutional sequence to sequence learning", section 3.1,
https://arxiv.org/abs/1705.03122; initialized from a normal distribution of standard deviation 0.02,
as in the code of Devlin et al. 2018, "BERT", https://arxiv.org/abs/1810.04805. There are as many
positions as in training, and no more.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ablate.errors import UserError
from ablate.pos_enc import PosEnc


class Learned(PosEnc):
    """A table with a row for each position of training, added to the input."""

    acts_in = "input"

    def __init__(self, **sizes: Any) -> None:
        super().__init__(**sizes)
        self.table = nn.Parameter(torch.empty(self.length, self.dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.table, std=0.02)

    def embed(
        self, x: Float[Tensor, "b i {self.dim}"], start: int = 0
    ) -> Float[Tensor, "b i {self.dim}"]:
        end = start + x.shape[1]
        if end > self.length:
            raise UserError(
                f"pos_enc=learned was trained for {self.length} positions and cannot take {end}; "
                f"use at most {self.length}, or train with more or with another pos_enc"
            )
        return x + self.table[start:end].to(x.dtype)
