"""Normed: a learned table whose vectors are normalized when they are read, by RMS norm with a gain.

modded-nanogpt (Jordan et al. 2024, https://github.com/KellerJordan/modded-nanogpt) and nanochat
(https://github.com/karpathy/nanochat) normalize embeddings so that the residual stream starts at
one scale, however large the learning rate of the table is.
"""

from functools import partial
from typing import Any

from jaxtyping import Float, Int
from torch import Tensor, nn

from ablate.config.rules import Positive
from ablate.model.embedding.learned import Learned


class Normed(Learned):
    """A learned table followed by RMS norm; a tied output map is the table without the norm.

    std: of its initial values.
    """

    def __init__(self, vocab_size: int, dim: int, *, std: Positive, eps: Positive, **given: Any):
        draw = partial(nn.init.normal_, std=std)
        super().__init__(vocab_size, dim, **given | {"draw": draw})
        self.norm = nn.RMSNorm(dim, eps=eps)

    def forward(self, tokens: Int[Tensor, "b i"]) -> Float[Tensor, "b i d"]:
        x: Tensor = self.norm(super().forward(tokens))
        return x
