"""Recurrent layers: rnn, gru or lstm, stacked, unidirectional or bidirectional.

rnn: Elman 1990, h = tanh(W x + U h); gru: Cho et al. 2014, https://arxiv.org/abs/1406.1078; lstm:
Hochreiter and Schmidhuber 1997, with the forget gate of Gers et al. 2000. They are torch's: its GRU
resets U h, not h before U, and its update gate is the share of the old state that is kept.
Bidirectional: Schuster and Paliwal 1997. Residuals between layers: Wu et al. 2016, section 3.1,
https://arxiv.org/abs/1609.08144. Dropout between layers, not between steps: Zaremba et al. 2014,
https://arxiv.org/abs/1409.2329.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from ablate.model.layers.dropout import Dropout

# The state of a layer after a step: h, and c of an lstm, each `directions b width`.
Hidden = tuple[Tensor, ...]


class SeededRNN(nn.RNNBase):
    """Initialisation: U orthogonal and W Glorot's for each gate, biases 0, the forget gate's 1.

    Orthogonal: Saxe et al. 2013, https://arxiv.org/abs/1312.6120, as in Bahdanau et al. 2015,
    appendix B.1; Glorot and Bengio 2010; forget gate: Jozefowicz et al. 2015, section 2.2.
    """

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
                else:  # torch adds two biases; its gates stand in the order i f g o
                    forget = len(gates) == 4 and number == 1 and name.startswith("bias_ih")
                    nn.init.constant_(gate, float(forget))


class RNN(SeededRNN, nn.RNN):
    pass


class GRU(SeededRNN, nn.GRU):
    pass


class LSTM(SeededRNN, nn.LSTM):
    """oneDNN's LSTM in bfloat16 needs AVX-512 and fails without it; torch's own does not."""

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


CELLS: dict[str, type[RNN | GRU | LSTM]] = {"rnn": RNN, "gru": GRU, "lstm": LSTM}


def uniform(table: Tensor) -> None:
    """Embeddings from [-0.1, 0.1]: Luong et al. 2015, section 4.1, https://arxiv.org/abs/1508.04025.

    The small initial embeddings of a Transformer hardly change the state of a cell.
    """
    nn.init.uniform_(table, -0.1, 0.1)


class Recurrent(nn.Module):
    """`depth` layers, each `dim` wide: dim / 2 in each direction if bidirectional.

    With residuals every layer but the first adds its input to its output.
    """

    def __init__(
        self,
        inputs: int,
        dim: int,
        *,
        cell: str,
        depth: int,
        residual: bool,
        dropout: float,
        bidirectional: bool = False,
    ):
        super().__init__()
        directions = 1 + bidirectional
        assert dim % directions == 0
        self.residual = residual
        self.layers = nn.ModuleList(
            CELLS[cell](width, dim // directions, batch_first=True, bidirectional=bidirectional)
            for width in [inputs] + [dim] * (depth - 1)
        )
        self.dropout = Dropout(dropout)
        self.states = 2 if cell == "lstm" else 1  # tensors in a Hidden

    def forward(
        self, x: Tensor, hidden: list[Hidden] | None = None, keep: Tensor | None = None
    ) -> tuple[Tensor, list[Hidden]]:
        """b i inputs -> b i dim, and the state of each layer after the last step.

        hidden: the initial state; None: zeros. keep: b i, True = real; padding stands at the end of
        its row, is not read, and has an output of 0.
        """
        # On the meta device, where FLOPs are counted, lengths are unknown: all positions are read.
        if keep is None or x.is_meta:
            return self._layers(x, hidden, lambda steps: steps)
        lengths = keep.sum(1).cpu()
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        y, after = self._layers(packed.data, hidden, lambda steps: packed._replace(data=steps))
        y, _ = pad_packed_sequence(
            packed._replace(data=y), batch_first=True, total_length=x.shape[1]
        )
        return y, after

    def _layers(
        self, x: Tensor, hidden: list[Hidden] | None, sequence: Callable[[Tensor], Any]
    ) -> tuple[Tensor, list[Hidden]]:
        """Apply all layers; `sequence` turns x into the input of torch's layers."""
        after: list[Hidden] = []
        for number, layer in enumerate(self.layers):
            before = None
            if hidden is not None:
                before = hidden[number] if self.states == 2 else hidden[number][0]
            y, new = layer(sequence(self.dropout(x) if number else x), before)
            y = y.data if isinstance(y, PackedSequence) else y
            x = x + y if self.residual and number else y
            after.append(new if self.states == 2 else (new,))
        return x, after

    def output(self, hidden: list[Hidden]) -> Tensor:
        """The output of the step that left the layers in this state: b dim."""
        said = [torch.cat(tuple(h), dim=-1) for h, *_ in hidden]
        return torch.stack(said).sum(0) if self.residual else said[-1]
