"""Sequence to sequence: an encoder reads the source, a decoder writes the target.

Sutskever et al. 2014, https://arxiv.org/abs/1409.3215; Cho et al. 2014,
https://arxiv.org/abs/1406.1078. What every model of this kind offers to training and to search.
"""

from abc import ABC, abstractmethod

from torch import Tensor, nn

from ablate.model.init import Model


class State(ABC):
    """What a decoder keeps between two steps: the encoded source and how far the target is."""

    @abstractmethod
    def select(self, rows: Tensor) -> None:
        """Keep these rows of the batch in this order, repeated where they are named twice."""


class Seq2Seq(Model):
    """Source and target tokens in, logits of the next target token out.

    Both sides are numbers of tokens, filled up with `ablate.data.pairs.PAD`, which no result
    depends on.
    """

    @property
    def cross(self) -> list[nn.Module]:
        """The attention modules that read the encoder, in the order of application."""
        raise NotImplementedError

    @abstractmethod
    def forward(self, source: Tensor, target_in: Tensor) -> Tensor:
        """Teacher forcing: b j, b i -> b i target_vocab."""

    @abstractmethod
    def encode(self, source: Tensor) -> State:
        """b j -> where a decoder starts from; everything that is computed once for a source."""

    @abstractmethod
    def step(self, tokens: Tensor, state: State) -> Tensor:
        """The tokens written last, b (first BOS) -> logits b target_vocab; advances the state."""
