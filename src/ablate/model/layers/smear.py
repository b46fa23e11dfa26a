"""Smear: a part of the embedding of the token before is added to each embedding (token shift).

x[t] + lambda sigmoid(w x[t]) x[t - 1]: modded-nanogpt, record 34,
https://github.com/KellerJordan/modded-nanogpt/pull/130; the gate reads 12 channels of x[t].
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ablate.kernel.interface.documents import Documents
from ablate.model.layers.channel_gate import ChannelGate
from ablate.model.layers.layer import Cache
from ablate.model.layers.token_before import token_before


class Smear(nn.Module):
    """`share` is lambda, which starts at 0, so that the embeddings are at first unchanged."""

    def __init__(self, dim: int):
        super().__init__()
        self.gate = ChannelGate(dim, 1)
        self.share = nn.Parameter(torch.zeros(()))

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.share)

    def forward(
        self,
        x: Float[Tensor, "b i d"],
        *,
        documents: Documents | None = None,
        cache: Cache | None = None,
    ) -> Float[Tensor, "b i d"]:
        """x: with a cache only the new tokens. Nothing is added to the first token of a row or of
        a document."""
        return x + self.share * self.gate(x) * token_before(self, x, 0.0, documents, cache)
