"""Learned: a vector for every token, randomly initialized and trained with the rest of the model.

Bengio et al. 2003, "A neural probabilistic language model", section 2,
https://www.jmlr.org/papers/v3/bengio03a.html: tokens that are used alike get similar vectors.
"""

from collections.abc import Callable, Sequence

from jaxtyping import Float
from torch import Tensor

from ablate.model.layers.linear import Embedding, small


class Learned(Embedding):
    """An embedding table: `weight`, vocab_size x dim."""

    def __init__(
        self,
        vocab_size: int,
        dim: int,
        *,
        draw: Callable[[Float[Tensor, "vocab_size dim"]], object] = small,
        reads: Sequence[str] = ("tokens",),
    ):
        self.reads = reads
        super().__init__(vocab_size, dim, draw=draw)
