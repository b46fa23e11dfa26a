"""x + factor y, a constant.

With 1 / sqrt(2 depth), independent outputs of 2 depth sublayers that are as large as the input add
as much variance as it has.
"""

from typing import Any

from jaxtyping import Float
from torch import Tensor

from ablate.config.rules import Positive
from ablate.model.connection import Connection


class Scaled(Connection):
    """factor: null: 1 / sqrt(2 depth)."""

    def __init__(self, dim: int, *, factor: Positive | None, **position: Any) -> None:
        super().__init__(dim, **position)
        self.factor = (2 * self.depth) ** -0.5 if factor is None else factor

    def weighed(self, y: Float[Tensor, "b i {self.dim}"]) -> Float[Tensor, "b i {self.dim}"]:
        return self.factor * y
