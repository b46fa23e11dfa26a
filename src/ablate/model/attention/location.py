"""Location-based: score(q, j) = q . w_j, with a vector w_j learned per head and key position.

Luong et al. 2015, "Effective approaches to attention-based neural machine translation", equation 8,
https://arxiv.org/abs/1508.04025: a = softmax(W_a h_t); the rows of W_a are the w_j here. The
content of a position is ignored. Initialized uniformly in [-0.1, 0.1], as all parameters there
(section 4.1). The number of positions is fixed: the paper truncates longer sentences, here they are
rejected.
"""

from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ablate.config.conflicts import Conflict
from ablate.config.rules import Count
from ablate.errors import UserError
from ablate.model.attention import Lowered, Score


class Location(Score):
    """A learned key for each of `max_length` positions; None: the length of training."""

    conflicts = (
        Conflict(
            lambda c: c("data.documents") != "ignore",
            "model.attention={model.attention} has a vector for each position of a row, and"
            " documents begin anywhere in a row; set data.documents=ignore",
        ),
        Conflict(
            lambda c: (
                c("model.attention.max_length") is not None
                and c("model.attention.max_length") < c.positions
            ),
            "model.attention.max_length={model.attention.max_length} is shorter than the"
            " {:positions} positions of training; set at least that many, or null",
        ),
    )
    key: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset({"dot_product"})

    def __init__(self, *, max_length: Count | None, **sizes: Any) -> None:
        super().__init__(**sizes)
        if max_length is not None and max_length < self.length:
            raise UserError(
                f"{self.slot}.max_length={max_length} must be an integer of at least "
                f"{self.length}, the positions of training, or null"
            )
        self.max_length = self.length if max_length is None else max_length
        self.table = nn.Parameter(torch.empty(self.heads, self.max_length, self.query_dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.uniform_(self.table, -0.1, 0.1)

    def forward(
        self, q: Float[Tensor, "b h i k"], k: Float[Tensor, "b h j l"]
    ) -> Float[Tensor, "b h i j"]:
        return q @ self.first(k.shape[2]).mT

    def lower(self, q: Float[Tensor, "b h i k"], k: Float[Tensor, "b g j m"]) -> Lowered:
        return q, self.first(k.shape[2]).expand(len(q), -1, -1, -1), 1.0

    def first(self, keys: int) -> Float[Tensor, "h {keys} k"]:
        """The vectors of the first `keys` positions."""
        if keys > self.max_length:
            raise UserError(
                f"{self.slot}=location has a table of {self.max_length} positions and cannot "
                f"take {keys}; train with {self.slot}.max_length={keys} or more"
            )
        return self.table[:, :keys]
