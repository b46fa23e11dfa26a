"""Learned: a vector for every token, drawn at random and trained with the rest of the model.

Bengio et al. 2003, "A neural probabilistic language model", section 2,
https://www.jmlr.org/papers/v3/bengio03a.html: tokens that are used alike come to lie together.
"""

from collections.abc import Callable, Sequence

from torch import Tensor

from ablate.model.layers.linear import Embedding, small


class Learned(Embedding):
    """`weight`, vocab_size x dim."""

    def __init__(
        self,
        vocab_size: int,
        dim: int,
        *,
        draw: Callable[[Tensor], object] = small,
        reads: Sequence[str] = ("tokens",),
    ):
        self.reads = reads
        super().__init__(vocab_size, dim, draw=draw)
