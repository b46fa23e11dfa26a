"""Attention along the edges of a graph: memory grows with edges, not with nodes squared."""

from typing import ClassVar

import torch
from einops import rearrange
from torch import Tensor

from ablate.kernel import Attend, Kernel, Layer
from ablate.model.dropout import dropout


class Sparse(Kernel):
    """Every edge is a batch of one query and one key to the score; the softmax is over the edges
    that leave a query. A query without edges gets zeros."""

    name: ClassVar[str] = "sparse"

    def refuses(self, layer: Layer) -> str | None:
        if not layer.edges:
            return "it has no edges, along which alone this kernel works"
        if not layer.softmax:
            return "the weights are no softmax, and it computes no others"
        return None

    def __call__(self, attend: Attend) -> Tensor:
        assert attend.edges is not None
        assert len(attend.v) == 1, "a batch is one graph"
        query, key = attend.edges
        prepared = attend.score.keys(attend.k) if attend.prepared is None else attend.prepared
        q, k = (rearrange(x[0], "h n k -> n h 1 k") for x in (attend.q, prepared))
        scores = rearrange(attend.score.compare(q[query], k[key]), "e h 1 1 -> e h")
        weights = dropout(softmax(scores, query, attend.queries), attend.dropout)
        values = rearrange(attend.v[0], "h n k -> n h k")
        shares = weights[..., None] * values[key]
        context = shares.new_zeros(attend.queries, *values.shape[1:]).index_add(0, query, shares)
        return rearrange(context, "n h k -> 1 h n k")


def softmax(scores: Tensor, query: Tensor, queries: int) -> Tensor:
    """e h, and the query of each edge -> e h, which sum to 1 over the edges of each query."""
    shape = (queries, scores.shape[1])
    highest = scores.new_full(shape, -torch.inf).scatter_reduce(
        0, query[:, None].expand_as(scores), scores.detach(), "amax"
    )
    raised = (scores - highest[query]).exp()
    return raised / raised.new_zeros(shape).index_add(0, query, raised)[query]
