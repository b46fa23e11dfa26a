"""Embeddings: what a model reads in place of a token's number. One class per file.

A model makes one for each kind of token it reads, `embedding(vocab_size, dim)`, whose forward turns
`b i` into `b i dim`, and says what only some options ask for:

    draw    how a learned table begins in a model of this kind
    reads   the names of what a batch holds for it, such as ("source",): word2vec learns from those

`weight` holds the vectors, vocab_size x dim: the output map, too, where the two are tied.
"""

from collections.abc import Callable
from typing import Protocol

from torch import Tensor


class TokenEmbedding(Protocol):
    weight: Tensor

    def __call__(self, tokens: Tensor) -> Tensor: ...


MakeEmbedding = Callable[..., TokenEmbedding]
