"""Gated recurrent unit: Cho et al. 2014, https://arxiv.org/abs/1406.1078.

torch's resets U h, not h before U, and its update gate is the share of the old state that is kept.
"""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ablate.model.cell import Cell, Steps, sigmoid_gradient, tanh_gradient


class GRUSteps(Steps):
    """r and z are sigmoids of W x + U h, n = tanh(W x + r U h), h = n + z (h - n)."""

    apart = True

    def __init__(self, *tensors: Any) -> None:
        super().__init__(*tensors)
        self.hidden = self.gates.new_empty(self.gates.shape)  # U h + its bias
        self.two = 2 * self.dim  # r and z

    def forward(self, t: int, x: Float[Tensor, "b f"]) -> Float[Tensor, "b d"]:
        two, gates = self.two, self.gates[t].addmm_(x, self.w_in)
        hidden = torch.addmm(self.bias, self.h[t], self.u_in, out=self.hidden[t])
        r = gates[:, :two].add_(hidden[:, :two]).sigmoid_()[:, : self.dim]
        n = gates[:, two:].addcmul_(r, hidden[:, two:]).tanh_()
        return torch.lerp(n, self.h[t], gates[:, self.dim : two], out=self.h[t + 1])

    def start_backward(self, d_after: Sequence[Float[Tensor, "b d"]]) -> None:
        super().start_backward(d_after)
        self._d_hidden = torch.empty_like(self.hidden)

    def backward(self, t: int, d_h: Float[Tensor, "b d"]) -> Float[Tensor, "b f"]:
        r, z, n = self.gates[t].chunk(3, dim=1)
        d_r, d_z, d_n = self.d_gates[t].chunk(3, dim=1)
        two, d = self.two, self.d_after[0].add_(d_h)
        kept = d * z
        tanh_gradient(d - kept, n, out=d_n)
        torch.sub(self.h[t], n, out=d_z).mul_(d)
        torch.mul(d_n, self.hidden[t][:, two:], out=d_r)
        both = self.d_gates[t][:, :two]
        sigmoid_gradient(both, self.gates[t][:, :two], out=both)
        d_hidden = self.d_hidden[t]
        d_hidden[:, :two] = both
        torch.mul(d_n, r, out=d_hidden[:, two:])
        self.d_after[0] = kept.addmm_(d_hidden, self.u)
        return self.d_gates[t] @ self.w

    @property
    def d_hidden(self) -> Float[Tensor, "i b g"]:
        return self._d_hidden


class GRU(Cell, nn.GRU):
    steps = GRUSteps
