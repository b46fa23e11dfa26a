"""The ablated gate: every channel passes unchanged."""

from jaxtyping import Float
from torch import Tensor

from ablate.model.gate import Gate


class NoGate(Gate):
    """Changes nothing."""

    def __init__(self, channels: int) -> None:
        super().__init__()

    def forward(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y x"]:
        return x
