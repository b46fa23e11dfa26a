"""Parts of a language model's embedding that read the token before (modded-nanogpt,
https://github.com/KellerJordan/modded-nanogpt).

Smear: a part of the embedding of the token before is added to each embedding (token shift), x[t] +
lambda sigmoid(w x[t]) x[t - 1]: record 34, /pull/130 there; the gate reads 12 channels of x[t].
Bigram: an embedding of each pair of adjacent tokens, found by a hash, is added to the token's:
record 62, vector number (36313 t[i] xor 27191 t[i - 1]) mod (n - 1) of n, the last one for a token
without one before it. There it is added before every layer, with a factor each; here once, to the
embedding of the token.
"""

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn

from ablate.kernel.interface.documents import Documents
from ablate.model.layers.channel_gate import ChannelGate
from ablate.model.layers.layer import Cache
from ablate.model.layers.linear import Embedding

FACTOR = 0.05  # of the embeddings of pairs, at first


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


def token_before(
    reader: nn.Module,
    x: Shaped[Tensor, "b i *n"],
    first: float,
    documents: Documents | None,
    cache: Cache | None,
) -> Shaped[Tensor, "b i *n"]:
    """Shift x by one token; the first token of a row or of a document gets `first`.

    x: with a cache only the new tokens. reader: the module whose state in the cache is the last
    token.
    """
    before = x.new_full((len(x), 1, *x.shape[2:]), first)
    if cache is not None:
        (before,) = cache.states.get((0, reader), (before,))
        cache.states[0, reader] = (x[:, -1:],)
    shifted = torch.cat([before, x[:, :-1]], dim=1)
    if documents is not None:
        start = documents.position == 0
        shifted = shifted.masked_fill(start.view(*start.shape, *[1] * (x.ndim - 2)), first)
    return shifted
