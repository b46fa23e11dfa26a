"""Decoders of model=rnn_seq2seq: the order of attention, cell and read-out. One class per file.

Here: their state, their initial state, their interface. A decoder of a config group is constructed
with the widths of embeddings and states, `context` (the attention over the encoder's states),
`bidirectional` (whether the encoder reads in both directions), `input_feeding`, and the keys of
Recurrent.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ablate.model.base import State
from ablate.model.layers.linear import Linear, width_std
from ablate.model.recurrent.recurrent import Hidden, Recurrent
from ablate.model.recurrent.rnn_attention import LastState, Memory, RNNAttention

MakeDecoder = Callable[..., "Decoder"]


@dataclass
class RNNState(State):
    """The state of an RNN decoder within a target."""

    memory: Memory
    hidden: list[Hidden]  # of the layers, after the steps so far
    position: int = 0  # of the next step
    feed: Float[Tensor, "b 1 d"] | None = None  # Luong's attentional state, for input feeding

    def __post_init__(self) -> None:
        self.source = torch.arange(len(self.memory.keep), device=self.memory.keep.device)

    def select(self, rows: Int[Tensor, " rows"]) -> None:
        self.hidden = [tuple(part[:, rows] for part in layer) for layer in self.hidden]
        if self.feed is not None:
            self.feed = self.feed[rows]
        # Beam search mostly reorders rows of one source, whose memory need not be copied.
        before, self.source = self.source, self.source[rows]
        if not torch.equal(before, self.source):
            self.memory = self.memory.select(rows)


class Start(nn.Module):
    """tanh(W h): the initial state of each decoder layer from the last state of the encoder's.

    There is one W for each layer; for an lstm, one for h and one for c.
    """

    def __init__(self, inputs: int, dim: int, *, recurrent: Recurrent):
        super().__init__()
        self.layers = nn.ModuleList(
            nn.ModuleList(
                Linear(inputs, dim, bias=False, std=width_std(inputs))
                for _ in range(recurrent.states)
            )
            for _ in recurrent.layers
        )

    def forward(self, last: Sequence[Sequence[Float[Tensor, "b inputs"]]]) -> list[Hidden]:
        first: list[Hidden] = []
        for maps, layer in zip(self.layers, last, strict=True):
            assert isinstance(maps, nn.ModuleList)
            pairs = zip(maps, layer, strict=True)
            first.append(tuple(torch.tanh(linear(part))[None] for linear, part in pairs))
        return first


class Decoder(nn.Module, ABC):
    """Embedded target tokens in, inputs of the output projection out, of width `width`.

    reads: input width of the lowest layer; `recurrent`: the keys of Recurrent.
    """

    # Whether `width` is half of that of the states.
    halves: ClassVar[bool] = False

    def __init__(
        self,
        reads: int,
        dim: int,
        *,
        width: int,
        context: RNNAttention | LastState,
        **recurrent: Any,
    ):
        super().__init__()
        self.width = width
        self.context = context
        self.recurrent = Recurrent(reads, dim, **recurrent)

    @abstractmethod
    def start(self, memory: Memory, last: list[Hidden]) -> RNNState:
        """The initial state; last: the last state of every encoder layer."""

    @abstractmethod
    def forward(
        self, embedded: Float[Tensor, "b i e"], state: RNNState
    ) -> Float[Tensor, "b i {self.width}"]:
        """The next steps; advances the state."""
