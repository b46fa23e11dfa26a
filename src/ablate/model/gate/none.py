"""The ablated gate: every channel passes unchanged."""

from torch import nn

from ablate.model.gate import Gate


class NoGate(nn.Identity, Gate):
    """Changes nothing."""
