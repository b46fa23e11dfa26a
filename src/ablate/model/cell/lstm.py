"""Long short-term memory (LSTM): Hochreiter and Schmidhuber 1997, with a forget gate.

Gers, Schmidhuber and Cummins 2000, "Learning to forget: continual prediction with LSTM".
"""

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
        self.tanh_c = self.h.new_empty(self.h.shape)[1:]

    def forward(self, t: int, x: Float[Tensor, "b f"]) -> Float[Tensor, "b d"]:
        gates, d = self.gates[t], self.dim
        gates.addmm_(x, self.w_in).addmm_(self.h[t], self.u_in)
        i, f = gates[:, : 2 * d].sigmoid_().chunk(2, dim=1)
        g, o = gates[:, 2 * d : 3 * d].tanh_(), gates[:, 3 * d :].sigmoid_()
        c = torch.mul(f, self.c[t], out=self.c[t + 1]).addcmul_(i, g)
        return torch.mul(o, torch.tanh(c, out=self.tanh_c[t]), out=self.h[t + 1])

    def backward(self, t: int, d_h: Float[Tensor, "b d"]) -> Float[Tensor, "b f"]:
        d, gates, d_gates = self.dim, self.gates[t], self.d_gates[t]
        i, f, g, o = gates.chunk(4, dim=1)
        d_i, d_f, d_g, d_o = d_gates.chunk(4, dim=1)
        of_h, of_c = self.d_after
        of_h.add_(d_h)
        torch.mul(of_h, self.tanh_c[t], out=d_o)
        of_h.mul_(o)
        of_c.add_(tanh_gradient(of_h, self.tanh_c[t], out=of_h))
        torch.mul(of_c, g, out=d_i)
        torch.mul(of_c, self.c[t], out=d_f)
        torch.mul(of_c, i, out=d_g)
        of_c.mul_(f)
        for these in (slice(0, 2 * d), slice(3 * d, None)):
            sigmoid_gradient(d_gates[:, these], gates[:, these], out=d_gates[:, these])
        tanh_gradient(d_g, g, out=d_g)
        torch.mm(d_gates, self.u, out=of_h)
        return d_gates @ self.w

    @property
    def after(self) -> tuple[Float[Tensor, "b d"], ...]:
        return self.h[-1], self.c[-1]


class LSTM(Cell, nn.LSTM):
    """oneDNN's LSTM in bfloat16 needs AVX-512 and fails without it; torch's own does not."""

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
