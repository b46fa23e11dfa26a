"""The steps of recurrent cells, and the gradient of each, outside of autograd."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from ablate.model.cell import Cell
from ablate.model.cell.gru import GRU
from ablate.model.cell.lstm import LSTM
from ablate.model.cell.rnn import RNN


class Steps(ABC):
    """The steps of one layer of cells, and the gradient of each, outside of autograd.

    sums: W x + the biases, of the part of the input that is known before the first step. w: the
    columns of W for the rest of the input, which comes with each step. u: U; bias: that of U h.
    before: the state before the first step. Time is the first axis of stored tensors.

    A subclass computes a step from the sums in `gates[t]`, overwrites them with the values that the
    gradient needs, and computes the gradient of those sums in `d_gates[t]`.
    """

    # Whether U h + its bias is not simply added to W x.
    apart: ClassVar[bool] = False

    def __init__(
        self,
        sums: Float[Tensor, "i b g"],
        w: Float[Tensor, "g f"],
        u: Float[Tensor, "g d"],
        bias: Float[Tensor, " g"],
        before: Sequence[Float[Tensor, "b d"]],
    ) -> None:
        self.count, self.dim = len(sums), u.shape[1]
        self.w, self.u, self.bias = w, u, bias
        # Contiguous: such products are faster, and there is one of each for every step.
        self.w_in, self.u_in = w.T.contiguous(), u.T.contiguous()
        # Never `sums` itself, which belongs to the caller.
        self.gates = sums.contiguous() + (0 if self.apart else bias)
        self.h = sums.new_empty(self.count + 1, *before[0].shape)
        self.h[0] = before[0]
        # Views of every step, made at once: an index for each takes as long as a small operation.
        self.gates_at, self.h_at = self.gates.unbind(0), self.h.unbind(0)

    @abstractmethod
    def forward(self, t: int, x: Float[Tensor, "b f"]) -> Float[Tensor, "b d"]:
        """h(t + 1)."""

    def start_backward(self, d_after: Sequence[Float[Tensor, "b d"]]) -> None:
        """d_after: the gradient of the state after the last step."""
        self.d_gates = torch.empty_like(self.gates)
        self.d_gates_at = self.d_gates.unbind(0)
        self.d_after = [d.clone() for d in d_after]

    @abstractmethod
    def backward(self, t: int, d_h: Float[Tensor, "b d"]) -> Float[Tensor, "b f"]:
        """d_h: the gradient of h(t + 1) without that of later steps -> that of x(t)."""

    def gradients(self, x: Float[Tensor, "i b f"]) -> tuple[Float[Tensor, ...], ...]:
        """Those of sums, w, u, bias and `before`: one product for all steps."""
        d_w = self.d_gates.flatten(0, 1).T @ x.flatten(0, 1)
        of_u = self.d_hidden.flatten(0, 1)
        d_u = of_u.T @ self.h[:-1].flatten(0, 1)
        return self.d_gates, d_w, d_u, of_u.sum(0), *self.d_after

    @property
    def d_hidden(self) -> Float[Tensor, "i b g"]:
        """The gradient of U h + its bias."""
        return self.d_gates

    @property
    def after(self) -> tuple[Float[Tensor, "b d"], ...]:
        """The state after the last step."""
        return (self.h[-1],)


class LSTMSteps(Steps):
    """i, f and o are sigmoids, g a tanh of W x + U h; c = f c + i g, h = o tanh(c)."""

    def __init__(self, *tensors: Any) -> None:
        super().__init__(*tensors)
        self.c = self.h.new_empty(self.h.shape)
        _, self.c[0] = tensors[-1]
        self.c_at = self.c.unbind(0)
        self.tanh_c = self.h.new_empty(self.h.shape)[1:].unbind(0)
        self.views = views(self.gates, self.dim)

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
        self.d_views = views(self.d_gates, self.dim)

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


class GRUSteps(Steps):
    """r and z are sigmoids of W x + U h, n = tanh(W x + r U h), h = n + z (h - n)."""

    apart = True

    def __init__(self, *tensors: Any) -> None:
        super().__init__(*tensors)
        self.hidden = self.gates.new_empty(self.gates.shape)  # U h + its bias
        self.hidden_at = self.hidden.unbind(0)
        self.views = views(self.gates, self.dim)
        *_, self.of_n = views(self.hidden, self.dim)

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
        self.d_views = views(self.d_gates, self.dim)
        self.d_hidden_views = views(self._d_hidden, self.dim)

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


class RNNSteps(Steps):
    def forward(self, t: int, x: Float[Tensor, "b f"]) -> Float[Tensor, "b d"]:
        sums = self.gates_at[t].addmm_(x, self.w_in).addmm_(self.h_at[t], self.u_in)
        return self.h_at[t + 1].copy_(sums.tanh_())

    def backward(self, t: int, d_h: Float[Tensor, "b d"]) -> Float[Tensor, "b f"]:
        d = tanh_gradient(self.d_after[0].add_(d_h), self.gates_at[t], out=self.d_gates_at[t])
        self.d_after[0] = d @ self.u
        return d @ self.w


STEPS: dict[type[Cell], type[Steps]] = {RNN: RNNSteps, GRU: GRUSteps, LSTM: LSTMSteps}


def views(gates: Float[Tensor, "i b g"], dim: int) -> tuple[Sequence[Float[Tensor, "b _"]], ...]:
    """Of every step: the first two gates together, and each gate, of width `dim`."""
    parts = gates[:, :, : 2 * dim], *gates.split(dim, dim=2)
    return tuple(part.unbind(0) for part in parts)


def tanh_gradient(
    d: Float[Tensor, "*n"], y: Float[Tensor, "*n"], out: Float[Tensor, "*n"]
) -> Float[Tensor, "*n"]:
    """d (1 - y^2), the gradient of x for y = tanh(x)."""
    return torch.ops.aten.tanh_backward.grad_input(d, y, grad_input=out)


def sigmoid_gradient(
    d: Float[Tensor, "*n"], y: Float[Tensor, "*n"], out: Float[Tensor, "*n"]
) -> Float[Tensor, "*n"]:
    """d y (1 - y), the gradient of x for y = sigmoid(x)."""
    return torch.ops.aten.sigmoid_backward.grad_input(d, y, grad_input=out)
