"""The context of an RNN decoder: attention over the encoder's states, or one fixed vector.

Bahdanau et al. 2015, https://arxiv.org/abs/1409.0473, and Luong et al. 2015,
https://arxiv.org/abs/1508.04025: decoder states are the queries, encoder states the keys and the
values, in one head and without projections. Any score, kernel and window.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from ablate.kernel import AttentionInputs, Kernel, attention_weights
from ablate.kernel.auto import Auto
from ablate.kernel.interface.mask import combine
from ablate.model.attention import Score
from ablate.model.attention.none import NoAttention
from ablate.model.cell import decodes
from ablate.model.normalizer import Normalizer
from ablate.model.window import Window
from ablate.pos_enc.none import NoPosEnc
from ablate.random.draws import Stream


@dataclass
class Memory:
    """An encoded source."""

    states: Float[Tensor, "b j d"]  # of the encoder
    keep: Bool[Tensor, "b j"]  # True = a real token
    last: Float[Tensor, "b d"]  # the last output of the encoder
    keys: Float[Tensor, "b 1 j p"] | None = None  # Score.keys, computed once per source

    def select(self, rows: Int[Tensor, " rows"]) -> Memory:
        """The memory of these rows of the batch."""
        return Memory(
            states=self.states[rows],
            keep=self.keep[rows],
            last=self.last[rows],
            keys=None if self.keys is None else self.keys[rows],
        )


class LastState(nn.Module):
    """model.attention=none: the context of every step is the last output of the encoder."""

    def prepare(self, memory: Memory) -> Memory:
        return memory

    def forward(
        self, query: Float[Tensor, "b i d"], memory: Memory, start: int
    ) -> Float[Tensor, "b i d"]:
        return memory.last[:, None].expand(-1, query.shape[1], -1)


class RNNAttention(nn.Module):
    """Attention of decoder states to encoder states."""

    def __init__(
        self,
        dim: int,
        *,
        score: Score,
        normalizer: Normalizer,
        window: Callable[..., Window],
        kernel: Kernel,
    ):
        super().__init__()
        self.score, self.normalizer = score, normalizer
        self.draws = Stream()
        self.window = window(dim=dim)
        self.mask = self.window.mask
        # Recurrent states carry their positions themselves.
        self.pos = NoPosEnc(dim=dim, heads=1, head_dim=dim, length=score.length, depth=1)
        self.kernel = kernel.resolve(
            score.needs | normalizer.needs | self.window.needs | self.mask.needs
        )
        self.chosen = not isinstance(kernel, Auto)  # by name: nothing else is to compute its steps
        # A list while `recording` collects the attention weights, else None.
        self.recorded: list[Tensor] | None = None

    def prepare(self, memory: Memory) -> Memory:
        """The memory with its prepared keys, which do not depend on the decoder; contiguous, or a
        product for each step takes several times as long."""
        memory = replace(memory, states=memory.states.contiguous())
        return replace(memory, keys=self.score.keys(self._keys(memory)))

    def forward(
        self, query: Float[Tensor, "b i d"], memory: Memory, start: int
    ) -> Float[Tensor, "b i d"]:
        """The context of the steps `start`, `start` + 1 .."""
        plain = not (self.chosen or self.window.needs or self.recorded is not None)
        if plain and decodes(query):
            return self._step(query, memory, start)
        random = self.training and self.normalizer.samples
        attend = AttentionInputs(
            q=query[:, None, :, : query.shape[-1] * self.score.query],
            k=self._keys(memory),
            v=memory.states[:, None],
            score=self.score,
            mask=self.mask,
            pos=self.pos,
            layer=0,
            start=start,
            keep=memory.keep,
            prepared=memory.keys,
            factors=self.window.factors(query, memory.keep),
            normalizer=self.normalizer,
            training=self.training,
            stream=self.draws.key(query) if random else None,
        )
        if self.recorded is not None:
            # With their gradient, for losses of the weights.
            self.recorded.append(attention_weights(replace(attend, training=False)))
        return self.kernel(attend)[:, 0]

    def _step(
        self, query: Float[Tensor, "b 1 d"], memory: Memory, start: int
    ) -> Float[Tensor, "b 1 d"]:
        """Of one step, without the arguments that kernels need for many."""
        assert memory.keys is not None
        q = query[:, None, :, : query.shape[-1] * self.score.query]
        scores = self.score.compare(q, memory.keys)
        weights = self.normalizer(scores, self.allowed(memory, start, 1), training=False)
        return weights[:, 0] @ memory.states

    def allowed(
        self, memory: Memory, start: int, steps: int
    ) -> Bool[Tensor, "i j"] | Bool[Tensor, "b 1 #i j"] | None:
        """Which source tokens each of the next steps may attend to; None: all of them."""
        padded = not bool(memory.keep.all())
        if not padded and not self.mask.restricts:
            return None
        i, j = torch.arange(start, start + steps), torch.arange(memory.keep.shape[1])
        return combine(self.mask, i, j, memory.keep if padded else None)

    def _keys(self, memory: Memory) -> Float[Tensor, "b 1 j d"]:
        """Width 0 if the score does not use the key."""
        return memory.states[:, None, :, : memory.states.shape[-1] * self.score.key]


def make_context(
    dim: int, *, attention: Callable[..., Score], length: int, **parts: Any
) -> RNNAttention | LastState:
    """The module that computes the context: RNNAttention with these parts, or LastState without
    attention."""
    score = attention(heads=1, query_dim=dim, key_dim=dim, length=length, projected=False)
    if isinstance(score, NoAttention):
        return LastState()
    return RNNAttention(dim, score=score, **parts)
