"""The captioner's decoder: h(t-1) is the query, and the cell reads the context and the last word.

Xu et al. 2015, "Show, attend and tell", section 3.1.2, https://arxiv.org/abs/1502.03044, with e(t)
the embedding of the previous word and a_j the annotation vectors:
    h(0) = tanh(W_h mean_j a_j), c(0) = tanh(W_c mean_j a_j)
    z(t) = beta(t) sum_j alpha(t, j) a_j, scores between h(t-1) and a_j
    h(t) = cell([e(t); z(t)], h(t-1))
    logits of the word = L_o (e(t) + L_h h(t) + L_z z(t))
    beta(t) = sigmoid(w . h(t-1) + b), section 4.2.1, or 1
Choices that the paper leaves open: the two networks of the initial state have one layer, as in the
authors' code; no tanh precedes L_o, as in equation 7 (that code has one). L_o belongs to the
caller.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ablate.model.decoder import Decoder, RNNState, Start
from ablate.model.layers.linear import Linear, width_std
from ablate.model.recurrent.recurrent import Hidden
from ablate.model.recurrent.rnn_attention import Memory
from ablate.model.recurrent.written_gradient import unroll
from ablate.model.recurrent.written_gradient.loop import AttendsBefore


class ShowAttendTellDecoder(Decoder):
    """Steps are computed one after another, the read-out of all steps in one call."""

    def __init__(self, embedding_dim: int, dim: int, *, gating_scalar: bool, **parts: Any):
        super().__init__(embedding_dim + dim, dim, width=embedding_dim, **parts)
        self.first = Start(dim, dim, recurrent=self.recurrent)
        std = width_std(dim)
        self.beta = Linear(dim, 1, std=std) if gating_scalar else None
        self.from_state = Linear(dim, embedding_dim, bias=False, std=std)
        self.from_context = Linear(dim, embedding_dim, bias=False, std=std)

    def start(self, memory: Memory, last: list[Hidden]) -> RNNState:
        """last: the mean annotation vector in place of each part of a layer's state."""
        return RNNState(
            self.context.prepare(memory),
            self.first([[part[0] for part in state] for state in last]),
        )

    def decoded(
        self, embedded: Float[Tensor, "b i e"], state: RNNState
    ) -> Float[Tensor, "b i {self.width}"]:
        """The next steps, with their gradient written out if that is possible."""
        gate = [] if self.beta is None else [self.beta.weight, self.beta.bias]
        own = [self.recurrent.output(state.hidden), *gate]
        if made := unroll(AttendsBefore, self, embedded, state, own):
            return self.read_out(embedded, *made)
        outputs: Tensor = self(embedded, state)
        return outputs

    def forward(
        self, embedded: Float[Tensor, "b i e"], state: RNNState
    ) -> Float[Tensor, "b i {self.width}"]:
        outputs, contexts = [], []
        for step in embedded.split(1, dim=1):
            before = self.recurrent.output(state.hidden)[:, None]
            context = self.context(before, state.memory, state.position)
            if self.beta is not None:
                context = torch.sigmoid(self.beta(before)) * context
            h, state.hidden = self.recurrent(torch.cat([step, context], dim=-1), state.hidden)
            state.position += 1
            outputs.append(h)
            contexts.append(context)
        return self.read_out(embedded, torch.cat(outputs, dim=1), torch.cat(contexts, dim=1))

    def read_out(
        self,
        embedded: Float[Tensor, "b i {self.width}"],
        states: Float[Tensor, "b i d"],
        seen: Float[Tensor, "b i d"],
    ) -> Float[Tensor, "b i {self.width}"]:
        return embedded + self.from_state(states) + self.from_context(seen)
