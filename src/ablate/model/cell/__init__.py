"""Recurrent cells. One class per file: torch's layers, with initial values of our own.

A cell is constructed with the widths of its input and of its state, and torch's batch_first and
bidirectional. `states` counts the tensors that a layer hands to the next step.
"""

from collections.abc import Callable
from typing import ClassVar

from torch import nn

MakeCell = Callable[..., "Cell"]


class Cell(nn.RNNBase):
    """b i inputs -> b i width, and the state after the last step.

    Initialisation: U orthogonal and W Glorot's for each gate, biases 0, the forget gate's 1.

    Orthogonal: Saxe et al. 2013, https://arxiv.org/abs/1312.6120, as in Bahdanau et al. 2015,
    appendix B.1; Glorot and Bengio 2010; forget gate: Jozefowicz et al. 2015, section 2.2.
    """

    states: ClassVar[int] = 1
    forget_gate: ClassVar[int | None] = None  # its place among the gates

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
