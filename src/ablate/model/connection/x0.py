"""A skip from the embeddings to every sublayer: a x + b x0 + y, with learned numbers a and b.

Of the speed records of GPT-2 (modded-nanogpt, record 9) and of nanochat.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ablate.model.connection import Connection


class X0(Connection):
    """a starts at 1, b at `initial`."""

    def __init__(self, dim: int, *, initial: float, **position: Any) -> None:
        super().__init__(dim, **position)
        self.initial = initial
        self.stream, self.skip = nn.Parameter(torch.ones(())), nn.Parameter(torch.zeros(()))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.ones_(self.stream)
        nn.init.constant_(self.skip, self.initial)

    def write(
        self,
        x: Float[Tensor, "b i s"],
        y: Float[Tensor, "b i {self.dim}"],
        embedded: Float[Tensor, "b i {self.dim}"] | None,
    ) -> Float[Tensor, "b i s"]:
        assert embedded is not None
        return self.stream * x + self.skip * embedded + y
