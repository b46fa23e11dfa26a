"""Recurrent cells. One class per file: torch's layers, with initial values of our own.

A cell is constructed with the widths of its input and of its state, and torch's batch_first and
bidirectional. `states` counts the tensors that a layer hands to the next step.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

MakeCell = Callable[..., "Cell"]


class Cell(nn.RNNBase):
    """b i inputs -> b i width, and the state after the last step.

    Initialisation: U orthogonal and W Glorot's for each gate, biases 0, the forget gate's 1.

    Orthogonal: Saxe et al. 2013, https://arxiv.org/abs/1312.6120, as in Bahdanau et al. 2015,
    appendix B.1; Glorot and Bengio 2010; forget gate: Jozefowicz et al. 2015, section 2.2.
    """

    states: ClassVar[int] = 1
    forget_gate: ClassVar[int | None] = None  # its place among the gates
    # torch's function of one step: input, state, W, U and their biases -> the state after it.
    function: ClassVar[Callable[..., Any]]
    # Its steps with their gradient written out; None: there are none.
    steps: ClassVar[type[Steps] | None] = None

    @property
    def maps(self) -> tuple[Float[Tensor, "g ..."], ...]:
        """W, U and the bias of each."""
        return self.weight_ih_l0, self.weight_hh_l0, self.bias_ih_l0, self.bias_hh_l0  # type: ignore[return-value]

    def step(
        self, x: Float[Tensor, "b inputs"], before: Sequence[Float[Tensor, "b d"]]
    ) -> tuple[Float[Tensor, "b d"], ...]:
        """The state after one step."""
        after = type(self).function(x, before if self.states > 1 else before[0], *self.maps)
        return after if self.states > 1 else (after,)

    def reset_parameters(self) -> None:
        for name, parameter in self.named_parameters():
            if parameter.is_meta:
                continue
            gates = parameter.detach().split(self.hidden_size)
            for number, gate in enumerate(gates):
                if name.startswith("weight_hh"):
                    nn.init.orthogonal_(gate)
                elif name.startswith("weight_ih"):
                    nn.init.xavier_uniform_(gate)
                else:  # torch adds two biases
                    forget = number == self.forget_gate and name.startswith("bias_ih")
                    nn.init.constant_(gate, float(forget))


def written_out(x: Float[Tensor, ...]) -> bool:
    """Whether steps may be computed as they are written here, and not by torch's layers: on a CPU,
    in float32 or float64."""
    wide = x.dtype in (torch.float32, torch.float64)
    return x.device.type == "cpu" and wide and not torch.is_autocast_enabled("cpu")


def decodes(x: Float[Tensor, "b i _"]) -> bool:
    """Whether x is one step of decoding. It needs no gradient, and what torch's layers and kernels
    do around a step takes longer than the step: docs/results/benchmarks.md."""
    alone = x.shape[1] == 1 and not torch.is_grad_enabled()
    return alone and written_out(x) and not torch.compiler.is_compiling()


class Steps(ABC):
    """The steps of one layer of cells, and the gradient of each, outside of autograd.

    sums: W x + the biases, of the part of the input that is known before the first step. w: the
    columns of W for the rest of the input, which comes with each step. u: U; bias: that of U h.
    before: the state before the first step. Time is the first axis of what is kept.

    A subclass computes a step from `gates[t]`, which holds the sums and becomes what the gradient
    needs, and the gradient of those sums, in `d_gates[t]`.
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
        """d_h: the gradient of h(t + 1) beside that of later steps -> that of x(t)."""

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


def tanh_gradient(
    d: Float[Tensor, "*n"], y: Float[Tensor, "*n"], out: Float[Tensor, "*n"]
) -> Float[Tensor, "*n"]:
    """d (1 - y^2), the gradient of x where y = tanh(x)."""
    return torch.ops.aten.tanh_backward.grad_input(d, y, grad_input=out)


def sigmoid_gradient(
    d: Float[Tensor, "*n"], y: Float[Tensor, "*n"], out: Float[Tensor, "*n"]
) -> Float[Tensor, "*n"]:
    """d y (1 - y), the gradient of x where y = sigmoid(x)."""
    return torch.ops.aten.sigmoid_backward.grad_input(d, y, grad_input=out)
