"""ReZero: x + a y with a learned a, which starts at 0.

Bachlechner et al. 2020, "ReZero is all you need", https://arxiv.org/abs/2003.04887.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ablate.config.conflicts import Conflict
from ablate.model.connection import Connection


class ReZero(Connection):
    """At the start every block is the identity."""

    conflicts = (
        Conflict(
            lambda c: c("model.init_depth_scale") == "zero",
            "model.connection=rezero multiplies outputs of sublayers by zero at the start, and with"
            " model.init_depth_scale=zero they are zero, so that no gradient changes either; set"
            " model.init_depth_scale=true",
        ),
    )

    def __init__(self, dim: int, **position: Any) -> None:
        super().__init__(dim, **position)
        self.gain = nn.Parameter(torch.zeros(()))

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.gain)

    def weighed(self, y: Float[Tensor, "b i {self.dim}"]) -> Float[Tensor, "b i {self.dim}"]:
        return self.gain * y
