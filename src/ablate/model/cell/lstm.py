"""Long short-term memory (LSTM): Hochreiter and Schmidhuber 1997, with a forget gate.

Gers, Schmidhuber and Cummins 2000, "Learning to forget: continual prediction with LSTM".
"""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ablate.model.cell import Cell, Steps, sigmoid_gradient, tanh_gradient


class LSTMSteps(Steps):
    """i, f and o are sigmoids, g a tanh of W x + U h; c = f c + i g, h = o tanh(c)."""

    def __init__(self, *tensors: Any) -> None:
        super().__init__(*tensors)
        self.c = self.h.new_empty(self.h.shape)
        _, self.c[0] = tensors[-1]
        self.c_at = self.c.unbind(0)
        self.tanh_c = self.h.new_empty(self.h.shape)[1:].unbind(0)
        self.views = views(self.gates)

    def forward(self, t: int, x: Float[Tensor, "b f"]) -> Float[Tensor, "b d"]:
        both, i, f, g, o = (part[t] for part in self.views)
        self.gates_at[t].addmm_(x, self.w_in).addmm_(self.h_at[t], self.u_in)
        both.sigmoid_()
        g.tanh_()
        o.sigmoid_()
        c = torch.mul(f, self.c_at[t], out=self.c_at[t + 1]).addcmul_(i, g)
        return torch.mul(o, torch.tanh(c, out=self.tanh_c[t]), out=self.h_at[t + 1])

    def start_backward(self, d_after: Sequence[Float[Tensor, "b d"]]) -> None:
        super().start_backward(d_after)
        self.d_views = views(self.d_gates)

    def backward(self, t: int, d_h: Float[Tensor, "b d"]) -> Float[Tensor, "b f"]:
        both, i, f, g, o = (part[t] for part in self.views)
        d_both, d_i, d_f, d_g, d_o = (part[t] for part in self.d_views)
        of_h, of_c = self.d_after
        of_h.add_(d_h)
        torch.mul(of_h, self.tanh_c[t], out=d_o)
        of_h.mul_(o)
        of_c.add_(tanh_gradient(of_h, self.tanh_c[t], out=of_h))
        torch.mul(of_c, g, out=d_i)
        torch.mul(of_c, self.c_at[t], out=d_f)
        torch.mul(of_c, i, out=d_g)
        of_c.mul_(f)
        sigmoid_gradient(d_both, both, out=d_both)
        sigmoid_gradient(d_o, o, out=d_o)
        tanh_gradient(d_g, g, out=d_g)
        torch.mm(self.d_gates_at[t], self.u, out=of_h)
        return self.d_gates_at[t] @ self.w

    @property
    def after(self) -> tuple[Float[Tensor, "b d"], ...]:
        return self.h[-1], self.c[-1]


def views(gates: Float[Tensor, "i b g"]) -> tuple[Sequence[Float[Tensor, "b _"]], ...]:
    """Of every step i and f together, i, f, g, o."""
    i, f, g, o = gates.chunk(4, dim=2)
    both = gates[:, :, : 2 * i.shape[2]]
    return both.unbind(0), i.unbind(0), f.unbind(0), g.unbind(0), o.unbind(0)


class LSTM(Cell, nn.LSTM):
    """oneDNN's LSTM in bfloat16 needs AVX-512 and fails without it; torch's own does not."""

    function = torch.lstm_cell
    steps = LSTMSteps
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
