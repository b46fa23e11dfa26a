"""The ablated gate: every channel passes unchanged."""

from torch import Tensor

from ablate.model.gate import Gate


class NoGate(Gate):
    """Changes nothing."""

    def __init__(self, channels: int) -> None:
        super().__init__()

    def forward(self, x: Tensor) -> Tensor:
        return x
