"""Bigram: an embedding of each pair of adjacent tokens, found by a hash, is added to the token's.

modded-nanogpt, record 62, https://github.com/KellerJordan/modded-nanogpt: vector number
(36313 t[i] xor 27191 t[i - 1]) mod (n - 1) of n, the last one for a token without one before it.
There it is added before every layer, with a factor each; here once, to the embedding of the token.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ablate.kernel.interface.documents import Documents
from ablate.model.layers.layer import Cache
from ablate.model.layers.linear import Embedding
from ablate.model.layers.token_before import token_before

FACTOR = 0.05  # at first


class Bigram(nn.Module):
    """count: of vectors; they start at zero, so that the embeddings are at first unchanged."""

    def __init__(self, count: int, dim: int):
        super().__init__()
        self.table = Embedding(count, dim, draw=nn.init.zeros_)
        self.factor = nn.Parameter(torch.empty(()))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.constant_(self.factor, FACTOR)

    def forward(
        self,
        tokens: Int[Tensor, "b i"],
        *,
        documents: Documents | None = None,
        cache: Cache | None = None,
    ) -> Float[Tensor, "b i d"]:
        """tokens: with a cache only the new ones."""
        before = token_before(self, tokens, -1, documents, cache)
        last = self.table.num_embeddings - 1
        number = (36313 * tokens ^ 27191 * before) % last
        pair: Tensor = self.table(number.masked_fill(before < 0, last))
        return self.factor * pair
