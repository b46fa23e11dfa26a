"""Long short-term memory (LSTM): Hochreiter and Schmidhuber 1997, with a forget gate.

Gers, Schmidhuber and Cummins 2000, "Learning to forget: continual prediction with LSTM".
"""

from typing import Any

import torch
from torch import nn

from ablate.model.cell import Cell


class LSTM(Cell, nn.LSTM):
    """oneDNN's LSTM in bfloat16 needs AVX-512 and fails without it; torch's own does not."""

    function = torch.lstm_cell
    states = 2  # h and c
    forget_gate = 1  # torch's order is i f g o

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        switch: Any = torch.backends.mkldnn
        before = switch.enabled
        switch.enabled = before and not self._lacks_bfloat16()
        try:
            return super().forward(*args, **kwargs)
        finally:
            switch.enabled = before

    def _lacks_bfloat16(self) -> bool:
        if self.weight_ih_l0.device.type != "cpu" or torch.ops.mkldnn._is_mkldnn_bf16_supported():
            return False
        cast = torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu")
        return torch.bfloat16 in (self.weight_ih_l0.dtype, cast)
