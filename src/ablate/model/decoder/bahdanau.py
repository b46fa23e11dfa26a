"""Bahdanau's decoder, RNNSearch: s(t-1) is the query, and the cell reads the context and the token.

Bahdanau et al. 2015, "Neural machine translation by jointly learning to align and translate",
appendix A.2.2, https://arxiv.org/abs/1409.0473, with e(t) the embedding of the previous token:
    s(0) = tanh(W_s h), h the last state of the backward encoder
    c(t) = sum_j a(t, j) h_j, scores between s(t-1) and h_j
    s(t) = cell([e(t); c(t)], s(t-1))
    r(t) = max of each pair in U_o s(t-1) + V_o e(t) + C_o c(t)
Here U_o, V_o, C_o are one concatenated matrix, and s is the output of the top layer. Choices that
the paper leaves open: the read-out takes s(t-1), as its last formula prints it, although the
distribution is introduced as that of s(t); its width is dim / 2, as in the paper; the cell is
torch's, with biases (see recurrent.py), of any kind; an lstm's c(0) has its own W_s; the last state
of a unidirectional encoder serves as h, as in Cho et al. 2014, https://arxiv.org/abs/1406.1078.
"""

from typing import Any

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from ablate.config.conflicts import Conflict
from ablate.model.decoder import Decoder, RNNState, Start
from ablate.model.layers.linear import Linear, width_std
from ablate.model.recurrent.recurrent import Hidden
from ablate.model.recurrent.rnn_attention import Memory


class Bahdanau(Decoder):
    """Steps are computed one after another, the read-out of all steps in one call."""

    conflicts = (
        Conflict(
            lambda c: c("model.dim") % 2 != 0,
            "model.decoder=bahdanau reads out the larger of each pair of model.dim={model.dim}"
            " numbers, which must be even",
        ),
        Conflict(
            lambda c: c("model.input_feeding"),
            "model.input_feeding=true belongs to model.decoder=luong;"
            " model.decoder={model.decoder} always feeds the context to the cell",
        ),
    )
    halves = True

    def __init__(
        self,
        embedding_dim: int,
        dim: int,
        *,
        bidirectional: bool,
        input_feeding: bool = False,
        **parts: Any,
    ):
        assert dim % 2 == 0
        assert not input_feeding
        super().__init__(embedding_dim + dim, dim, width=dim // 2, **parts)
        self.first = Start(dim // (1 + bidirectional), dim, recurrent=self.recurrent)
        reads = dim + embedding_dim + dim
        self.maxout = Linear(reads, 2 * self.width, bias=False, std=width_std(reads))

    def start(self, memory: Memory, last: list[Hidden]) -> RNNState:
        backward = [[part[-1] for part in layer] for layer in last]
        return RNNState(self.context.prepare(memory), self.first(backward))

    def forward(
        self, embedded: Float[Tensor, "b i e"], state: RNNState
    ) -> Float[Tensor, "b i {self.width}"]:
        before, contexts = [], []
        for step in embedded.split(1, dim=1):
            s = self.recurrent.output(state.hidden)[:, None]
            context = self.context(s, state.memory, state.position)
            x = torch.cat([step, context], dim=-1)
            _, state.hidden = self.recurrent(x, state.hidden, start=state.position)
            state.position += 1
            before.append(s)
            contexts.append(context)
        return self.read_out(torch.cat(before, 1), embedded, torch.cat(contexts, 1))

    def read_out(
        self,
        before: Float[Tensor, "b i d"],
        embedded: Float[Tensor, "b i e"],
        contexts: Float[Tensor, "b i d"],
    ) -> Float[Tensor, "b i {self.width}"]:
        read = torch.cat([before, embedded, contexts], dim=-1)
        return rearrange(self.maxout(read), "b i (w pair) -> b i w pair", pair=2).max(-1).values
