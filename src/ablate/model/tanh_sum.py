"""Sums of v tanh(q + k) over all pairs of q and k, without a tanh for every pair.

    tanh(q + k) = 1 - 2 / (1 + exp(2 q) exp(2 k))

so that the exponentials are those of queries and keys alone, and a pair costs a product and a
reciprocal; with r for that reciprocal the derivative is 4 r (1 - r). Pairs are met in pieces that
stay in a core's cache, forward and again in the backward pass, and no tensor of queries x keys x
width is ever made. Measured: docs/benchmarks.md.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

ELEMENTS = 2**16  # of a piece, for each thread: 256 KB of float32
# Beyond it exp(2 x) is infinite or its inverse 0, and their product would be no number.
LIMITS = {torch.float32: 43.0, torch.float64: 350.0}


def tanh_sum(q: Tensor, k: Tensor, v: Tensor) -> Tensor | None:
    """b h i d, b h j d, h d -> b h i j, in the type of q; None where a number is too large.

    Half precision is computed in float32.
    """
    wide = torch.promote_types(q.dtype, torch.float32)
    limit = LIMITS[wide]
    with torch.no_grad():
        # Not a comparison with the largest: NaN, too, has to fall through.
        within = all(bool((x.abs() <= limit).all()) for x in (q, k))
    if not within:
        return None
    summed: Tensor = TanhSum.apply(q.to(wide), k.to(wide), v.to(wide))
    return summed.to(q.dtype)


class TanhSum(Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        eq, ek = ((2 * x).exp().flatten(0, 1) for x in (q, k))  # b h together
        per_row = v.repeat(len(q), 1)
        ctx.save_for_backward(eq, ek, v)
        ctx.shape = q.shape[:2]
        out = eq.new_empty(len(eq), eq.shape[1], ek.shape[1])
        for rows, queries, r in pieces(eq, ek):
            sums = r.flatten(1, 2) @ per_row[rows, :, None]
            out[rows, queries] = sums.view(r.shape[:3])
        total = v.sum(-1)[:, None, None]
        return out.unflatten(0, ctx.shape).mul_(-2).add_(total)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        eq, ek, v = ctx.saved_tensors
        g = gradient.flatten(0, 1).contiguous()
        dq, dk = torch.empty_like(eq), torch.zeros_like(ek)
        dv = eq.new_zeros(len(eq), eq.shape[-1])
        for rows, queries, r in pieces(eq, ek):
            part = g[rows, queries]
            dv[rows] += (part.flatten(1)[:, None] @ r.flatten(1, 2))[:, 0]
            slope = torch.addcmul(r, r, r, value=-1, out=r).mul_(part[..., None])
            dq[rows, queries] = slope.sum(2)
            dk[rows] += slope.sum(1)
        factor = 4 * v[:, None]
        summed = gradient.sum((0, 2, 3))[:, None]
        return (
            dq.unflatten(0, ctx.shape) * factor,
            dk.unflatten(0, ctx.shape) * factor,
            summed - 2 * dv.unflatten(0, ctx.shape).sum(0),
        )


def pieces(eq: Tensor, ek: Tensor) -> Iterator[tuple[slice, slice, Tensor]]:
    """n i d, n j d -> rows, queries, and 1 / (1 + eq ek) of them, n i j d, in one place of memory
    that the next piece takes over."""
    (count, i, d), j = eq.shape, ek.shape[1]
    most = ELEMENTS * torch.get_num_threads()
    queries = max(1, min(i, most // (j * d)))
    rows = max(1, most // (i * j * d)) if queries == i else 1
    one, place = eq.new_ones(()), eq.new_empty(min(rows, count) * queries * j * d)
    for row in range(0, count, rows):
        some = slice(row, min(row + rows, count))
        for first in range(0, i, queries):
            these = slice(first, min(first + queries, i))
            shape = (some.stop - some.start, these.stop - these.start, j, d)
            r = place[: shape[0] * shape[1] * j * d].view(shape)
            torch.addcmul(one, eq[some, these, None], ek[some, None], out=r)
            yield some, these, r.reciprocal_()
