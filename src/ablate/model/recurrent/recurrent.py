"""Recurrent layers of any cell, stacked, unidirectional or bidirectional.

Bidirectional: Schuster and Paliwal 1997. Residuals between layers: Wu et al. 2016, section 3.1,
https://arxiv.org/abs/1609.08144. Dropout between layers, not between steps: Zaremba et al. 2014,
https://arxiv.org/abs/1409.2329.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, TypedDict

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from ablate.config.rules import Depth, Share
from ablate.model.cell import Cell, MakeCell, decodes
from ablate.random.dropout import Dropout

# The state of a layer after a step: h, and c of an lstm.
Hidden = tuple[Float[Tensor, "directions b width"], ...]


def uniform(table: Float[Tensor, "count dim"]) -> None:
    """Embeddings from [-0.1, 0.1]: Luong et al. 2015, section 4.1,
    https://arxiv.org/abs/1508.04025.

    The small initial embeddings of a Transformer hardly change the state of a cell.
    """
    nn.init.uniform_(table, -0.1, 0.1)


class RecurrentKeys(TypedDict):
    """The keys of a model's YAML that Recurrent reads."""

    cell: MakeCell
    depth: Depth
    residual: bool
    dropout: Share


class Recurrent(nn.Module):
    """`depth` layers, each of width `dim`: dim / 2 in each direction if bidirectional.

    With residuals every layer but the first adds its input to its output.
    """

    def __init__(
        self,
        inputs: int,
        dim: int,
        *,
        cell: MakeCell,
        depth: Depth,
        residual: bool,
        dropout: Share,
        bidirectional: bool = False,
    ):
        super().__init__()
        directions = 1 + bidirectional
        assert dim % directions == 0
        self.residual = residual
        layers = [
            cell(width, dim // directions, batch_first=True, bidirectional=bidirectional)
            for width in [inputs] + [dim] * (depth - 1)
        ]
        self.layers = nn.ModuleList(layers)
        self.dropout = Dropout(dropout)
        self.states = layers[0].states  # tensors in a Hidden

    def forward(
        self,
        x: Float[Tensor, "b i inputs"],
        hidden: list[Hidden] | None = None,
        keep: Bool[Tensor, "b i"] | None = None,
        start: int = 0,
    ) -> tuple[Float[Tensor, "b i dim"], list[Hidden]]:
        """The output, and the state of each layer after the last step.

        hidden: the initial state; None: zeros. keep: True = real; padding is at the end of
        its row, is not read, and has an output of 0. start: the position of the first step.
        """
        if keep is None and hidden is not None and not self.training and decodes(x):
            return self._step(x, hidden)
        # On the meta device, which counts FLOPs, lengths are unknown: all positions are read.
        if keep is None or x.is_meta:
            return self._layers(
                x, hidden, lambda steps: steps, lambda y, layer: self.dropout(y, layer, start)
            )
        lengths = keep.sum(1).cpu()
        pack = partial(
            pack_padded_sequence, lengths=lengths, batch_first=True, enforce_sorted=False
        )
        packed = pack(x)

        def dropout(steps: Tensor, layer: int) -> Tensor:
            if not (self.training and self.dropout.p):
                return steps
            # By the place in the batch, which the packed steps do not have.
            ones = steps.new_ones(*keep.shape, steps.shape[-1])
            return steps * pack(self.dropout(ones, layer)).data

        y, after = self._layers(
            packed.data, hidden, lambda steps: packed._replace(data=steps), dropout
        )
        y, _ = pad_packed_sequence(
            packed._replace(data=y), batch_first=True, total_length=x.shape[1]
        )
        return y, after

    def _step(
        self, x: Float[Tensor, "b 1 inputs"], hidden: list[Hidden]
    ) -> tuple[Float[Tensor, "b 1 dim"], list[Hidden]]:
        y, after = x[:, 0], []
        for number, (layer, before) in enumerate(zip(self.layers, hidden, strict=True)):
            assert isinstance(layer, Cell)
            state = layer.step(y, [part[0] for part in before])
            y = y + state[0] if self.residual and number else state[0]
            after.append(tuple(part[None] for part in state))
        return y[:, None], after

    def _layers(
        self,
        x: Tensor,
        hidden: list[Hidden] | None,
        sequence: Callable[[Tensor], Any],
        dropout: Callable[[Tensor, int], Tensor],
    ) -> tuple[Tensor, list[Hidden]]:
        """Apply all layers. sequence: turns x into the input of torch's layers; dropout: applied
        between layers, to x and the number of the layer."""
        after: list[Hidden] = []
        for number, layer in enumerate(self.layers):
            before = None
            if hidden is not None:
                before = hidden[number] if self.states == 2 else hidden[number][0]
            y, new = layer(sequence(dropout(x, number) if number else x), before)
            y = y.data if isinstance(y, PackedSequence) else y
            x = x + y if self.residual and number else y
            after.append(new if self.states == 2 else (new,))
        return x, after

    def output(self, hidden: list[Hidden]) -> Float[Tensor, "b dim"]:
        """The output of the step that left the layers in this state."""
        outputs = [torch.cat(tuple(h), dim=-1) for h, *_ in hidden]
        return torch.stack(outputs).sum(0) if self.residual else outputs[-1]
