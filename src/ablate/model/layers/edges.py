"""Edges of a graph in two orders: by the node that sees, and by the one that is seen."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Edges:
    """Who may see whom. Ordered once for all layers of a model: sorting costs as much as a sum."""

    query: Tensor  # e: numbers of queries, from the first to the last
    key: Tensor  # e: of a key that each may see; no pair stands twice
    first: Tensor  # i: where the edges of each query begin
    turned: Tensor  # e: the edges in the order of their keys
    turned_query: Tensor  # e: their queries in that order
    turned_first: Tensor  # j: where the edges of each key begin in that order
    keys: int

    @classmethod
    def of(cls, pairs: Tensor, *, queries: int, keys: int) -> Edges:
        """2 e: a query and a key in each column, in any order."""
        query, key = pairs[:, pairs[0].argsort(stable=True)]
        turned = key.argsort(stable=True)
        return cls(
            query,
            key,
            begins(query, queries),
            turned,
            query[turned],
            begins(key[turned], keys),
            keys,
        )

    def rows(self, first: int, last: int) -> Edges:
        """Those of the queries `first` to `last` (exclusive), which are counted from 0 then."""
        some = (self.query >= first) & (self.query < last)
        pairs = torch.stack([self.query[some] - first, self.key[some]])
        return Edges.of(pairs, queries=last - first, keys=self.keys)


def begins(ordered: Tensor, count: int) -> Tensor:
    """Where each of `count` numbers, or the next one that is there, stands first."""
    return torch.searchsorted(ordered, torch.arange(count, device=ordered.device))
