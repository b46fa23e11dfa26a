"""The simple recurrent network: h = tanh(W x + U h), Elman 1990, "Finding structure in time"."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ablate.model.cell import Cell, Steps, tanh_gradient


class RNNSteps(Steps):
    def forward(self, t: int, x: Float[Tensor, "b f"]) -> Float[Tensor, "b d"]:
        sums = self.gates_at[t].addmm_(x, self.w_in).addmm_(self.h_at[t], self.u_in)
        return self.h_at[t + 1].copy_(sums.tanh_())

    def backward(self, t: int, d_h: Float[Tensor, "b d"]) -> Float[Tensor, "b f"]:
        d = tanh_gradient(self.d_after[0].add_(d_h), self.gates_at[t], out=self.d_gates_at[t])
        self.d_after[0] = d @ self.u
        return d @ self.w


class RNN(Cell, nn.RNN):
    function = torch.rnn_tanh_cell
    steps = RNNSteps
