"""Additive scores, sums of v tanh(q + k) for all pairs of q and k, without a tanh for every pair.

    tanh(q + k) = 1 - 2 / (1 + exp(2 q) exp(2 k))

Exponentials are taken once per query and key, and a pair costs a product and a reciprocal; with r
for that reciprocal the derivative is 4 r (1 - r). Pairs are computed in pieces that fit in a core's
cache, in the forward pass and again in the backward pass, so no tensor of queries x keys x width is
ever made. Measured: docs/results/benchmarks.md.
"""

from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor

ELEMENTS = 2**16  # of a piece, per thread: 256 KB of float32
# Beyond these, exp(2 x) overflows or underflows to 0, and the product of the two would be NaN.
LIMITS = {torch.float32: 43.0, torch.float64: 350.0}


def tanh_sum(
    q: Float[Tensor, "b h i d"], k: Float[Tensor, "b h j d"], v: Float[Tensor, "h d"]
) -> Float[Tensor, "b h i j"]:
    """In the dtype of q, computed in float32 or wider."""
    wide = torch.promote_types(q.dtype, torch.float32)
    summed: Tensor = sums(q.to(wide), k.to(wide), v.to(wide))
    return summed.to(q.dtype)


# Custom operators, which torch.compile treats as opaque.
@torch.library.custom_op("ablate::tanh_sums", mutates_args=())
def sums(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    shape = q.shape[:2]
    q, k, separate = prepared(q, k)
    per_row = v.repeat(shape[0], 1)
    out = q.new_empty(len(q), q.shape[1], k.shape[1])
    for rows, queries, r in pieces(q, k, separate=separate):
        total = r.flatten(1, 2) @ per_row[rows, :, None]
        out[rows, queries] = total.view(r.shape[:3])
    return out.unflatten(0, shape).mul_(-2).add_(v.sum(-1)[:, None, None])


@torch.library.custom_op("ablate::tanh_sums_backward", mutates_args=())
def gradients(gradient: Tensor, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    shape = q.shape[:2]
    q, k, separate = prepared(q, k)
    g = gradient.flatten(0, 1).contiguous()
    dq, dk = torch.empty_like(q), torch.zeros_like(k)
    dv = q.new_zeros(len(q), q.shape[-1])
    for rows, queries, r in pieces(q, k, separate=separate):
        part = g[rows, queries]
        dv[rows] += (part.flatten(1)[:, None] @ r.flatten(1, 2))[:, 0]
        slope = torch.addcmul(r, r, r, value=-1, out=r).mul_(part[..., None])
        dq[rows, queries] = slope.sum(2)
        dk[rows] += slope.sum(1)
    factor = 4 * v[:, None]
    summed = gradient.sum((0, 2, 3))[:, None]
    return (
        dq.unflatten(0, shape) * factor,
        dk.unflatten(0, shape) * factor,
        summed - 2 * dv.unflatten(0, shape).sum(0),
    )


def prepared(
    q: Float[Tensor, "b h i d"], k: Float[Tensor, "b h j d"]
) -> tuple[Float[Tensor, "b*h i d"], Float[Tensor, "b*h j d"], bool]:
    """With b and h merged, and whether these were replaced by their exponentials."""
    # Contiguous results, as register_fake promises below.
    q, k = q.flatten(0, 1).contiguous(), k.flatten(0, 1).contiguous()
    # Elementwise, so that NaN fails the test; with max() > limit it would pass.
    separate = all(bool((x.abs() <= LIMITS[x.dtype]).all()) for x in (q, k))
    return ((2 * q).exp(), (2 * k).exp(), True) if separate else (q, k, False)


sums.register_fake(lambda q, k, v: q.new_empty(*q.shape[:3], k.shape[2]))
gradients.register_fake(
    lambda gradient, q, k, v: (q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape))
)
sums.register_autograd(
    lambda ctx, gradient: gradients(gradient, *ctx.saved_tensors),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
)


def pieces(
    q: Float[Tensor, "n i d"], k: Float[Tensor, "n j d"], *, separate: bool
) -> Iterator[tuple[slice, slice, Float[Tensor, "n i j d"]]]:
    """Yield rows, queries and their r, in a buffer that the next piece overwrites.

    separate: q and k are exponentials already and r = 1 / (1 + q k); otherwise r =
    sigmoid(-2 (q + k)), which cannot overflow but costs an exponential per pair.
    """
    (count, i, d), j = q.shape, k.shape[1]
    most = ELEMENTS * torch.get_num_threads()
    queries = max(1, min(i, most // max(1, j * d)))
    rows = max(1, most // max(1, i * j * d)) if queries == i else 1
    ones, buffer = q.new_ones(()), q.new_empty(min(rows, count) * queries * j * d)
    for row in range(0, count, rows):
        rows_slice = slice(row, min(row + rows, count))
        for first in range(0, i, queries):
            these = slice(first, min(first + queries, i))
            shape = (rows_slice.stop - rows_slice.start, these.stop - these.start, j, d)
            r = buffer[: shape[0] * shape[1] * j * d].view(shape)
            q_part, k_part = q[rows_slice, these, None], k[rows_slice, None]
            if separate:
                torch.addcmul(ones, q_part, k_part, out=r).reciprocal_()
            else:
                torch.add(q_part, k_part, out=r).mul_(-2).sigmoid_()
            yield rows_slice, these, r
