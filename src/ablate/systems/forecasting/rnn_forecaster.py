"""RNN forecaster: recurrent layers over the values, with causal attention over their states.

Elman 1990, "Finding structure in time"; attention over the states of a forecaster: Qin et al. 2017,
https://arxiv.org/abs/1704.02971, section 3.2, here within one network and read out as in Luong et
al. 2015, equation 5, https://arxiv.org/abs/1508.04025: tanh(W [c; h]). The cell's own input weights
are the only map of the values.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ablate.config.rules import Depth, Share, Width
from ablate.kernel import Kernel
from ablate.model.attention import Score
from ablate.model.attention.none import NoAttention
from ablate.model.base import ModelTraits
from ablate.model.cell import MakeCell
from ablate.model.layers.linear import Linear, width_std
from ablate.model.mask import Mask
from ablate.model.mask.causal import Causal
from ablate.model.normalizer import Normalizer
from ablate.model.recurrent.recurrent import Recurrent
from ablate.model.recurrent.rnn_attention import Memory, RNNAttention
from ablate.model.rnn_lm import GOES_AROUND, ReadOut
from ablate.model.window import Window
from ablate.systems.forecasting.forecaster import Forecaster


class UpToNow(Window):
    """Causal: a state attends to itself and those before it."""

    @property
    def mask(self) -> Mask:
        return Causal(causal=True)


class RNNForecaster(Forecaster):
    """`length` values are read in training; longer windows may be read afterwards.

    Without attention (model.attention=none) the state itself is read out.
    """

    outputs = ("next values",)
    traits = ModelTraits(reads_without_attention=True)
    conflicts = (GOES_AROUND,)
    positions = None

    def __init__(
        self,
        *,
        channels: int,
        length: int,
        dim: Width,
        cell: MakeCell,
        depth: Depth,
        residual: bool,
        dropout: Share,
        predict_residual: bool,
        attention: Callable[..., Score],
        normalizer: Normalizer,
        kernel: Kernel,
    ):
        super().__init__()
        self.predict_residual = predict_residual
        self.recurrent = Recurrent(
            channels, dim, cell=cell, depth=depth, residual=residual, dropout=dropout
        )
        score = attention(heads=1, query_dim=dim, key_dim=dim, length=length, projected=False)
        self.attention = self.combine = None
        if not isinstance(score, NoAttention):
            self.attention = RNNAttention(
                dim, score=score, normalizer=normalizer, window=UpToNow, kernel=kernel
            )
            self.combine = Linear(2 * dim, dim, bias=False, std=width_std(2 * dim))
        self.read_out = ReadOut(dropout)
        self.head = Linear(dim, channels, std=width_std(dim))

    @property
    def compiles(self) -> list[nn.Module]:
        """Compiling gains nothing: the recurrent layers, which take the time, are not compiled."""
        return [self.read_out if self.attention is None else self.attention]

    def read(self, values: Float[Tensor, "b i c"]) -> Float[Tensor, "b i c"]:
        states, _ = self.recurrent(values)
        return self.read_out(self._attend(states), self.head.weight, self.head.bias)

    def _attend(self, states: Float[Tensor, "b i d"]) -> Float[Tensor, "b i d"]:
        if self.attention is None or self.combine is None:
            return states
        everything = torch.ones(states.shape[:2], dtype=torch.bool, device=states.device)
        memory = Memory(states=states, keep=everything, last=states[:, -1])
        context = self.attention(states, self.attention.prepare(memory), 0)
        return torch.tanh(self.combine(torch.cat([context, states], dim=-1)))
