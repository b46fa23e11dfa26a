"""Recurrent cells. One class per file: torch's layers, with initial values of our own.

A cell is constructed with the widths of its input and of its state, and torch's batch_first and
bidirectional. `states` counts the tensors that a layer hands to the next step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

MakeCell = Callable[..., "Cell"]


class Cell(nn.RNNBase):
    """b i inputs -> b i width, and the state after the last step.

    Initialization: U orthogonal and W Glorot's for each gate, biases 0, the forget gate's 1.

    Orthogonal: Saxe et al. 2013, https://arxiv.org/abs/1312.6120, as in Bahdanau et al. 2015,
    appendix B.1; Glorot and Bengio 2010; forget gate: Jozefowicz et al. 2015, section 2.2.
    """

    states: ClassVar[int] = 1
    forget_gate: ClassVar[int | None] = None  # its place among the gates
    # torch's function of one step: input, state, W, U and their biases -> the state after it.
    function: ClassVar[Callable[..., Any]]

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


def wide_on_cpu(x: Float[Tensor, ...]) -> bool:
    """Whether x is in float32 or float64 on a CPU, and products stay so."""
    wide = x.dtype in (torch.float32, torch.float64)
    return x.device.type == "cpu" and wide and not torch.is_autocast_enabled("cpu")


def decodes(x: Float[Tensor, "b i _"]) -> bool:
    """Whether x is one step of decoding. It needs no gradient, and the overhead of torch's layers
    and kernels takes longer than the step: docs/results/benchmarks.md."""
    alone = x.shape[1] == 1 and not torch.is_grad_enabled()
    return alone and wide_on_cpu(x) and not torch.compiler.is_compiling()
