"""Luong's decoder: a(t) = tanh(W [c(t); s(t)]), with s(t) the query and c(t) its context.

Luong et al. 2015, "Effective approaches to attention-based neural machine translation", section 3
and equation 5, https://arxiv.org/abs/1508.04025: a(t) is its attentional state, s(t) its h_t. With
input feeding (section 3.3) the cell reads a(t-1) and the token, and a(0) = 0. The first state
is the encoder's last, layer by layer. With a bidirectional encoder, which the paper does not have,
it is tanh(W h) of the two last states, concatenated.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ablate.model.decoder import Decoder, RNNState, Start
from ablate.model.layers.linear import Linear, width_std
from ablate.model.recurrent.recurrent import Hidden
from ablate.model.recurrent.rnn_attention import Memory


class Luong(Decoder):
    """Without input feeding no step depends on another's attention: one call computes all."""

    def __init__(
        self,
        embedding_dim: int,
        dim: int,
        *,
        bidirectional: bool,
        input_feeding: bool,
        **parts: Any,
    ):
        super().__init__(embedding_dim + dim * input_feeding, dim, width=dim, **parts)
        self.input_feeding = input_feeding
        self.first = Start(dim, dim, recurrent=self.recurrent) if bidirectional else None
        self.combine = Linear(2 * dim, dim, bias=False, std=width_std(2 * dim))

    def start(self, memory: Memory, last: list[Hidden]) -> RNNState:
        if self.first is not None:
            last = self.first([[torch.cat(tuple(part), -1) for part in layer] for layer in last])
        state = RNNState(self.context.prepare(memory), last)
        if self.input_feeding:
            state.feed = torch.zeros_like(memory.last)[:, None]
        return state

    def forward(
        self, embedded: Float[Tensor, "b i e"], state: RNNState
    ) -> Float[Tensor, "b i {self.width}"]:
        if not self.input_feeding:
            return self._attend(embedded, state)
        steps = []
        for step in embedded.split(1, dim=1):
            assert state.feed is not None
            state.feed = self._attend(torch.cat([step, state.feed], dim=-1), state)
            steps.append(state.feed)
        return torch.cat(steps, dim=1)

    def _attend(self, x: Float[Tensor, "b i inputs"], state: RNNState) -> Float[Tensor, "b i d"]:
        """Inputs of the cell -> attentional states."""
        s, state.hidden = self.recurrent(x, state.hidden, start=state.position)
        context = self.context(s, state.memory, state.position)
        state.position += x.shape[1]
        return torch.tanh(self.combine(torch.cat([context, s], dim=-1)))
