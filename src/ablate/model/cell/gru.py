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
        self.hidden_at = self.hidden.unbind(0)
        self.views = views(self.gates)
        *_, self.of_n = views(self.hidden)

    def forward(self, t: int, x: Float[Tensor, "b f"]) -> Float[Tensor, "b d"]:
        both, r, z, n = (part[t] for part in self.views)
        self.gates_at[t].addmm_(x, self.w_in)
        hidden = torch.addmm(self.bias, self.h_at[t], self.u_in, out=self.hidden_at[t])
        both.add_(hidden[:, : 2 * self.dim]).sigmoid_()
        n.addcmul_(r, self.of_n[t]).tanh_()
        return torch.lerp(n, self.h_at[t], z, out=self.h_at[t + 1])

    def start_backward(self, d_after: Sequence[Float[Tensor, "b d"]]) -> None:
        super().start_backward(d_after)
        self._d_hidden = torch.empty_like(self.hidden)
        self.d_views, self.d_hidden_views = views(self.d_gates), views(self._d_hidden)

    def backward(self, t: int, d_h: Float[Tensor, "b d"]) -> Float[Tensor, "b f"]:
        both, r, z, n = (part[t] for part in self.views)
        d_both, d_r, d_z, d_n = (part[t] for part in self.d_views)
        d = self.d_after[0].add_(d_h)
        kept = d * z
        tanh_gradient(d - kept, n, out=d_n)
        torch.sub(self.h_at[t], n, out=d_z).mul_(d)
        torch.mul(d_n, self.of_n[t], out=d_r)
        sigmoid_gradient(d_both, both, out=d_both)
        of_both, *_, of_n = (part[t] for part in self.d_hidden_views)
        of_both.copy_(d_both)
        torch.mul(d_n, r, out=of_n)
        self.d_after[0] = kept.addmm_(self._d_hidden[t], self.u)
        return self.d_gates_at[t] @ self.w

    @property
    def d_hidden(self) -> Float[Tensor, "i b g"]:
        return self._d_hidden


def views(gates: Float[Tensor, "i b g"]) -> tuple[Sequence[Float[Tensor, "b _"]], ...]:
    """Of every step r and z together, r, z, n."""
    r, z, n = gates.chunk(3, dim=2)
    both = gates[:, :, : 2 * r.shape[2]]
    return both.unbind(0), r.unbind(0), z.unbind(0), n.unbind(0)


class GRU(Cell, nn.GRU):
    function = torch.gru_cell
    steps = GRUSteps
