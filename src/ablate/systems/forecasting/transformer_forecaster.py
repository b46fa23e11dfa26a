"""Transformer forecaster: GPT's stack between two linear maps, on values instead of tokens.

A decoder-only Transformer (Radford et al. 2018) over a time series, as in Li et al. 2019,
"Enhancing the locality and breaking the memory bottleneck of Transformer on time series
forecasting", section 3, https://arxiv.org/abs/1907.00235, without its convolutions; it predicts the
value, not a distribution.
"""

from typing import Unpack

from jaxtyping import Float
from torch import Tensor, nn

from ablate.config.rules import Width
from ablate.model.base import ModelTraits
from ablate.model.layers.linear import Linear, width_std
from ablate.model.layers.stack import Stack, StackKeys, encodings
from ablate.systems.forecasting.forecaster import Forecaster


class TransformerForecaster(Forecaster):
    """`stack`: keys of Stack."""

    outputs = ("next values",)
    traits = ModelTraits(causal=True)
    positions = "layers"
    embeddings = encodings("stack")

    def __init__(
        self,
        *,
        channels: int,
        length: int,
        dim: Width,
        predict_residual: bool,
        **stack: Unpack[StackKeys],
    ):
        super().__init__()
        self.predict_residual = predict_residual
        # torch's own, whose bias is also random: a norm of w x without a bias would hide the size
        # of x.
        self.embedding = nn.Linear(channels, dim)
        self.stack = Stack(dim, length=length, causal=True, **stack)
        self.head = Linear(dim, channels, std=width_std(dim))

    def read(self, values: Float[Tensor, "b i c"]) -> Float[Tensor, "b i c"]:
        return self.head(self.stack(self.embedding(values)))
