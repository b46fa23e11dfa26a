"""Graph attention (GAT): score(q, k) = LeakyReLU(a . q + b . k), with a and b learned per head.

Velickovic et al. 2018, "Graph attention networks", equation 3, https://arxiv.org/abs/1710.10903:
its one vector is [a b], initialized as in Glorot and Bengio 2010, and q and k are one linear map of
the nodes. All queries rank the keys in the same order (Brody et al. 2022, theorem 1,
https://arxiv.org/abs/2105.14491); with model.attention=gatv2 they need not.
"""

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from ablate.model.attention import Score, Summed
from ablate.model.cell import wide_on_cpu

SLOPE = 0.2  # negative slope of the LeakyReLU


class GAT(Score):
    """The LeakyReLU of one number for the query plus one for the key."""

    needs: ClassVar[frozenset[str]] = frozenset({"sum"})

    def __init__(self, **sizes: Any) -> None:
        super().__init__(**sizes)
        self.a = nn.Parameter(torch.empty(self.heads, self.query_dim, 1))
        self.b = nn.Parameter(torch.empty(self.heads, self.key_dim, 1))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        bound = (6 / (self.query_dim + self.key_dim + 1)) ** 0.5  # Glorot's, of the map [a b]
        nn.init.uniform_(self.a, -bound, bound)
        nn.init.uniform_(self.b, -bound, bound)

    def forward(
        self, q: Float[Tensor, "b h i k"], k: Float[Tensor, "b h j l"]
    ) -> Float[Tensor, "b h i j"]:
        return self.compare(q, self.keys(k))

    def keys(self, k: Float[Tensor, "b h j l"]) -> Float[Tensor, "b h j p"]:
        return product(k, self.b)

    def compare(
        self, q: Float[Tensor, "b h i k"], prepared: Float[Tensor, "b h j p"]
    ) -> Float[Tensor, "b h i j"]:
        return F.leaky_relu(product(q, self.a) + prepared.mT, SLOPE)

    def summed(self, q: Float[Tensor, "b h i k"], prepared: Float[Tensor, "b h j p"]) -> Summed:
        """Sums of width 1."""
        return Summed(product(q, self.a), prepared, prepared.new_ones(self.heads, 1), SLOPE)

    def along(
        self,
        q: Float[Tensor, "h n k"],
        prepared: Float[Tensor, "h m p"],
        query: Int[Tensor, " e"],
        key: Int[Tensor, " e"],
    ) -> Float[Tensor, "e h"]:
        """Computes a number for each node, not for each edge."""
        numbers = [x.squeeze(-1).mT.contiguous() for x in (product(q, self.a), prepared)]
        return F.leaky_relu(
            numbers[0].index_select(0, query) + numbers[1].index_select(0, key), SLOPE
        )


def product(
    x: Float[Tensor, "*b h n k"], column: Float[Tensor, "h k 1"]
) -> Float[Tensor, "*b h n 1"]:
    """x @ column; on a CPU as a sum, in half the time of a product of a matrix and a column."""
    return (x * column.mT).sum(-1, keepdim=True) if wide_on_cpu(x) else x @ column
