"""Graph attention's: score(q, k) = LeakyReLU(a . q + b . k), with a and b learned per head.

Velickovic et al. 2018, "Graph attention networks", equation 3, https://arxiv.org/abs/1710.10903:
its one vector is [a b], drawn as Glorot and Bengio 2010 do, and q and k are one map of the nodes.
All queries put the keys in one order, whatever they are (Brody et al. 2022, theorem 1,
https://arxiv.org/abs/2105.14491); model.attention=gatv2 does not.
"""

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ablate.model.attention import Score, Summed

SLOPE = 0.2  # of the LeakyReLU below 0


class GAT(Score):
    """A number for the query and one for the key, added."""

    lowers: ClassVar[bool] = False
    sums: ClassVar[bool] = True

    def __init__(self, **sizes: Any) -> None:
        super().__init__(**sizes)
        self.a = nn.Parameter(torch.empty(self.heads, self.query_dim, 1))
        self.b = nn.Parameter(torch.empty(self.heads, self.key_dim, 1))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        bound = (6 / (self.query_dim + self.key_dim + 1)) ** 0.5  # of [a b] onto one number
        nn.init.uniform_(self.a, -bound, bound)
        nn.init.uniform_(self.b, -bound, bound)

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        return self.compare(q, self.keys(k))

    def keys(self, k: Tensor) -> Tensor:
        return k @ self.b

    def compare(self, q: Tensor, prepared: Tensor) -> Tensor:
        return F.leaky_relu(q @ self.a + prepared.mT, SLOPE)

    def summed(self, q: Tensor, prepared: Tensor) -> Summed:
        """Of width 1."""
        return Summed(q @ self.a, prepared, prepared.new_ones(self.heads, 1), SLOPE)

    def along(self, q: Tensor, prepared: Tensor, query: Tensor, key: Tensor) -> Tensor:
        """A number for each node, not for each edge."""
        numbers = [x.squeeze(-1).mT.contiguous() for x in (q @ self.a, prepared)]
        return F.leaky_relu(
            numbers[0].index_select(0, query) + numbers[1].index_select(0, key), SLOPE
        )
