"""Relative: score gains q . a[j - i] / sqrt(k), context gains sum_j weight_ij c[j - i].

Shaw et al. 2018, "Self-attention with relative position representations", equations 3 to 5,
https://arxiv.org/abs/1803.02155; a and c are its a^K and a^V, and distances beyond `max_distance`
(its k) are clipped to it (section 3.2). Equation 5 adds a to the key inside the scaled dot product,
hence the division; the other scores get the same term. The tables are shared by the heads and not
by the layers, and initialized with Glorot's uniform distribution, as in the authors' tensor2tensor.
"""

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ablate.config.conflicts import Conflict
from ablate.config.rules import Count
from ablate.errors import UserError
from ablate.pos_enc import PosEnc


class Relative(PosEnc):
    """Vectors learned per distance, for `keys`, `values` or both.

    With causal attention there are none for keys ahead of the query.
    """

    needs = frozenset({"distance_bias"})
    needs_if: ClassVar[Mapping[str, str]] = {"pos_enc.values": "weights"}
    conflicts = (
        Conflict(
            lambda c: c("pos_enc.keys") and not c.declares("model.attention", "query"),
            "pos_enc=relative with pos_enc.keys=true needs a score that reads the query, and"
            " model.attention={model.attention} does not; set pos_enc.keys=false",
        ),
    )

    def __init__(self, *, max_distance: Count, keys: bool, values: bool, **sizes: Any) -> None:
        super().__init__(**sizes)
        if not (keys or values):
            raise UserError(
                "pos_enc=relative with pos_enc.keys=false and pos_enc.values=false encodes "
                "nothing; set one to true, or use pos_enc=none"
            )
        if values:
            self.needs = Relative.needs | {"weights"}
        self.max_distance = max_distance
        self.ahead = 0 if self.causal else max_distance
        self.key_tables = self.tables() if keys else None
        self.value_tables = self.tables() if values else None
        self.reset_parameters()

    def tables(self) -> nn.ParameterList:
        """One table per layer, `r k`: its row r is for the distance r - max_distance."""
        rows = self.max_distance + 1 + self.ahead
        return nn.ParameterList(torch.empty(rows, self.head_dim) for _ in range(self.depth))

    def reset_parameters(self) -> None:
        for table in self.parameters():
            nn.init.xavier_uniform_(table)

    def bias(
        self, q: Float[Tensor, "b h i k"], i: Int[Tensor, " i"], j: Int[Tensor, " j"], layer: int
    ) -> Float[Tensor, "#b #h #i j"] | None:
        # Multiplied by the few distances first, then gathered per key: never `b h i j k`.
        if (by_distance := self.by_distance(q, j - i[:, None], layer)) is None:
            return None
        per_distance, rows = by_distance
        return per_distance.gather(-1, rows.expand(*q.shape[:2], -1, -1))

    def by_distance(
        self, q: Float[Tensor, "b h i k"], ahead: Int[Tensor, " *n"], layer: int
    ) -> tuple[Float[Tensor, "#b #h #i r"], Int[Tensor, " *n"]] | None:
        if self.key_tables is None:
            return None
        table: Tensor = self.key_tables[layer].to(q.dtype)
        return q @ table.mT / math.sqrt(self.head_dim), self.row(ahead)

    def values(
        self,
        weights: Float[Tensor, "b h i j"],
        i: Int[Tensor, " i"],
        j: Int[Tensor, " j"],
        layer: int,
    ) -> Float[Tensor, "b h i {self.head_dim}"]:
        assert self.value_tables is not None
        table: Tensor = self.value_tables[layer].to(weights.dtype)
        per_distance = weights.new_zeros(*weights.shape[:3], len(table))
        rows = self.row(j - i[:, None]).expand_as(weights)
        return per_distance.scatter_add(-1, rows, weights) @ table

    def row(self, ahead: Int[Tensor, " *n"]) -> Int[Tensor, " *n"]:
        """The row of the tables for every distance j - i."""
        return ahead.clamp(-self.max_distance, self.ahead) + self.max_distance
