"""Edges of a graph in two orders: by query and by key."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor


@dataclass(frozen=True)
class Edges:
    """Who may attend to whom. Sorted once for all layers: sorting costs as much as a sum."""

    query: Int[Tensor, " e"]  # the query of each edge, in ascending order
    key: Int[Tensor, " e"]  # the key of each edge; no pair occurs twice
    first: Int[Tensor, " i"]  # the index of the first edge of each query
    turned: Int[Tensor, " e"]  # the edges in the order of their keys
    turned_query: Int[Tensor, " e"]  # their queries in that order
    turned_first: Int[Tensor, " j"]  # the index of the first edge of each key in that order
    keys: int

    @classmethod
    def of(cls, pairs: Int[Tensor, "2 e"], *, queries: int, keys: int) -> Edges:
        """pairs: a query and a key in each column, in any order."""
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
        """The edges of the queries `first` to `last` (exclusive), renumbered from 0."""
        selected = (self.query >= first) & (self.query < last)
        pairs = torch.stack([self.query[selected] - first, self.key[selected]])
        return Edges.of(pairs, queries=last - first, keys=self.keys)


def begins(ordered: Int[Tensor, " e"], count: int) -> Int[Tensor, " {count}"]:
    """The first index in `ordered` of each number below `count`, or of the next that occurs."""
    return torch.searchsorted(ordered, torch.arange(count, device=ordered.device))
