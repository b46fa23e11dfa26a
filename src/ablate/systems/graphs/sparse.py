"""Attention along the edges of a graph: memory grows with edges, not with nodes squared."""

from typing import Any, ClassVar

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from ablate.config.conflicts import Conflict
from ablate.kernel import AttentionInputs, Kernel
from ablate.kernel.interface.edges import Edges
from ablate.random.dropout import dropout_at

PIECE = 2**18  # numbers: 1 MB of float32


class Sparse(Kernel):
    """Scores every edge, and takes the softmax over the edges of each query. A query without edges
    gets zeros."""

    name: ClassVar[str] = "sparse"
    provides = Kernel.provides - {
        *("softcap", "sink", "distance_bias", "bias", "normalizer", "weights", "range", "mask")
    }
    conflicts = (
        Conflict(
            lambda c: c.has("model.attention") and not c.has("model.mask"),
            "kernel=sparse follows the edges of a graph, and model={model} reads none; use"
            " kernel=auto",
        ),
    )

    def __call__(self, attend: AttentionInputs) -> Float[Tensor, "b h {attend.queries} w"]:
        assert attend.edges is not None
        assert len(attend.v) == 1, "a batch is one graph"
        edges = attend.edges
        prepared = attend.score.keys(attend.k) if attend.prepared is None else attend.prepared
        scores = attend.score.along(attend.q[0], prepared[0], edges.query, edges.key)
        weights = softmax(scores, edges.query, attend.queries)
        if attend.dropout:
            at = (edges.query + attend.start, edges.key)
            weights = dropout_at(weights, attend.dropout, attend.source, *at)
        wide = torch.promote_types(weights.dtype, attend.v.dtype)
        mixed: Tensor = Mixed.apply(attend.v[0].to(wide), weights.to(wide), edges)
        return mixed[None]


class Mixed(Function):
    """Values times weights, summed over the edges of each query.

    No tensor of edges x width is made: an edge is an entry of a bag of torch's embedding_bag, whose
    own backward pass is slow on a CPU; that of the values is the same sum along reversed edges.
    """

    @staticmethod
    def forward(
        ctx: Any, values: Float[Tensor, "h m k"], weights: Float[Tensor, "e h"], edges: Edges
    ) -> Float[Tensor, "h n k"]:
        ctx.save_for_backward(values, weights)
        ctx.edges = edges
        return summed(values, weights, edges.key, edges.first)

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, gradient: Float[Tensor, "h n k"]
    ) -> tuple[Float[Tensor, "h m k"], Float[Tensor, "e h"], None]:
        values, weights = ctx.saved_tensors
        edges = ctx.edges
        turned = weights.index_select(0, edges.turned)
        of_values = summed(gradient.contiguous(), turned, edges.turned_query, edges.turned_first)
        return of_values, products(gradient, values, edges.query, edges.key), None


def products(
    a: Float[Tensor, "h n k"],
    b: Float[Tensor, "h m k"],
    first: Int[Tensor, " e"],
    second: Int[Tensor, " e"],
) -> Float[Tensor, "e h"]:
    """The dot product of each pair of vectors, given as indices into both."""
    heads, _, width = a.shape
    a, b = (rearrange(x, "h n k -> n (h k)").contiguous() for x in (a, b))

    def of(edges: slice) -> Tensor:
        pairs = a.index_select(0, first[edges]) * b.index_select(0, second[edges])
        return pairs.unflatten(1, (heads, width)).sum(-1)

    # In pieces that fit in a core's cache; a compiler makes no tensor of the pairs at all.
    size = len(first) if torch.compiler.is_compiling() else max(1, PIECE // (heads * width))
    parts = [of(slice(n, n + size)) for n in range(0, len(first), size)]
    return torch.cat(parts) if parts else a.new_empty(0, heads)


def summed(
    values: Float[Tensor, "h m k"],
    weights: Float[Tensor, "e h"],
    indices: Int[Tensor, " e"],
    first: Int[Tensor, " n"],
) -> Float[Tensor, "h n k"]:
    """Sums of weights times values at `indices` over the edges of each owner, which begin at its
    `first`."""
    heads, count, _ = values.shape
    sums = F.embedding_bag(
        of_heads(indices, heads, count),
        values.flatten(0, 1),
        of_heads(first, heads, len(indices)),
        mode="sum",
        per_sample_weights=weights.mT.flatten(),
    )
    return sums.unflatten(0, (heads, len(first)))


def of_heads(numbers: Int[Tensor, " n"], heads: int, count: int) -> Int[Tensor, " {heads}*n"]:
    """Indices into the heads as one flat list, with `count` entries per head."""
    return (numbers + count * torch.arange(heads, device=numbers.device)[:, None]).flatten()


def softmax(
    scores: Float[Tensor, "e h"], query: Int[Tensor, " e"], queries: int
) -> Float[Tensor, "e h"]:
    """Softmax over the edges of each query; query: that of each edge."""
    shape, owner = (queries, scores.shape[1]), query[:, None].expand_as(scores)
    highest = scores.new_full(shape, -torch.inf).scatter_reduce(0, owner, scores.detach(), "amax")
    raised = (scores - highest.index_select(0, query)).exp()
    total = raised.new_zeros(shape).scatter_add(0, owner, raised)
    return raised / total.index_select(0, query)
