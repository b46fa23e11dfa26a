"""General, or bilinear: score(q, k) = q W k, with W learned per head.

Luong et al. 2015, "Effective approaches to attention-based neural machine translation", section
3.1, https://arxiv.org/abs/1508.04025. W is the paper's W_a; q is its target state h_t and k its
source state h_s. Initialized uniformly in [-0.1, 0.1], as all parameters there (section 4.1).
"""

from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ablate.model.attention import Lowered, Score


class General(Score):
    """A learned bilinear form of queries and keys, which may differ in width."""

    needs: ClassVar[frozenset[str]] = frozenset({"dot_product"})

    def __init__(self, **sizes: Any) -> None:
        super().__init__(**sizes)
        self.weight = nn.Parameter(torch.empty(self.heads, self.query_dim, self.key_dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.uniform_(self.weight, -0.1, 0.1)

    def forward(
        self, q: Float[Tensor, "b h i k"], k: Float[Tensor, "b h j l"]
    ) -> Float[Tensor, "b h i j"]:
        return q @ self.weight @ k.mT

    def lower(self, q: Float[Tensor, "b h i k"], k: Float[Tensor, "b g j m"]) -> Lowered:
        # One product per head for all positions, without the copies of q and W that `@` makes.
        return torch.einsum("bhik,hkl->bhil", q, self.weight), k, 1.0
