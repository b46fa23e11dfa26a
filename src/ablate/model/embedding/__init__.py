"""Token embeddings: the vectors that a model reads for token ids. One class per file.

A model makes one for each vocabulary it reads, `embedding(vocab_size, dim)`, whose forward maps
`b i` to `b i dim`, and passes two arguments that only some options use:

    draw    how a learned table is initialized in a model of this kind
    reads   the batch entries that it embeds, such as ("source",): word2vec learns from those

`weight` contains the vectors, vocab_size x dim; with tied embeddings it is also the output
projection.
"""

from collections.abc import Callable
from typing import Protocol

from jaxtyping import Float, Int
from torch import Tensor


class TokenEmbedding(Protocol):
    weight: Float[Tensor, "vocab d"]

    def __call__(self, tokens: Int[Tensor, "b i"]) -> Float[Tensor, "b i d"]: ...


MakeEmbedding = Callable[..., TokenEmbedding]
