# mypy: disable-error-code="no-untyped-def"
"""Triton kernels of attention by sums: score_ij = sum_d v_d f(q_id + k_jd), f tanh or LeakyReLU.

Softmax as it comes by, as in Dao et al. 2022, "FlashAttention", https://arxiv.org/abs/2205.14135: a
program has a block of queries (or keys) and meets the others block by block, so that neither a
tensor of queries x keys nor one of queries x keys x width is ever made: of a block of scores the
width is a loop. The backward pass makes the scores anew, once for what belongs to queries and once
for what belongs to keys, so that every number is written by one program and sums have one order.

q and k come with the width before the positions, `b h d i` and `b h d j`, for loads of neighbours;
values are `b h j w`. A query sees the keys `begin` to `end` (exclusive), of them those to `keep`.
The bias is table[b, h, i, rows[j - i + queries - 1]]. Numbers are computed as WIDE. What is wider
than a block, as heads of recurrent models are, is split: program_id(2) counts the blocks.
"""

import triton
import triton.language as tl

from ablate.model.sum_blocks import (
    bias_rows,
    derivative,
    dropped,
    hidden,
    matrix,
    of_forward,
    ranges,
    scores,
    weight_gradients,
)


@triton.jit(do_not_specialize=["queries", "keys"])
def forward(
    q, k, v, values, table, rows, begin, end, keep, seed, out, lse,
    queries, keys, heads, width, value_width, table_b, table_h, table_i,
    SLOPE: tl.constexpr, RATE: tl.constexpr, WIDE: tl.constexpr,
    BI: tl.constexpr, BJ: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """The context, `b h i w`, and the logarithm of the sum of exponentials, `b h i`."""
    bh = tl.program_id(0).to(tl.int64)
    b, h = bh // heads, bh % heads
    i = tl.program_id(1) * BI + tl.arange(0, BI)
    w = tl.program_id(2) * BV + tl.arange(0, BV)
    q, k, v = q + bh * width * queries, k + bh * width * keys, v + h * width
    values, out = values + bh * keys * value_width, out + bh * queries * value_width
    if table is not None:
        table += b * table_b + h * table_h
    if keep is not None:
        keep += b * keys
    begins, ends = ranges(begin, end, i, queries, keys)
    highest = tl.full([BI], -float("inf"), WIDE)
    total = tl.zeros([BI], WIDE)
    context = tl.zeros([BI, BV], WIDE)
    for first in range(tl.min(begins, 0) // BJ * BJ, tl.max(ends, 0), BJ):
        j = first + tl.arange(0, BJ)
        s = scores(
            q, k, v, table, rows, begins, ends, keep, i, j, queries, keys, width, table_i,
            SLOPE, WIDE,
        )  # fmt: skip
        higher = tl.maximum(highest, tl.max(s, 1))
        base = tl.where(higher == -float("inf"), 0.0, higher)  # nothing seen so far
        p = tl.exp(s - base[:, None])
        shrink = tl.exp(highest - base)
        total = total * shrink + tl.sum(p, 1)
        p = dropped(p, seed, bh, i, j, queries, keys, RATE)
        value = matrix(values, j, w, keys, value_width, WIDE)
        mixed = tl.dot(p, value, input_precision="ieee", out_dtype=WIDE)
        context = context * shrink[:, None] + mixed
        highest = higher
    empty = highest == -float("inf")
    total = tl.where(empty, 1.0, total)
    inside = (i < queries)[:, None] & (w < value_width)[None, :]
    tl.store(out + i[:, None] * value_width + w[None, :], context / total[:, None], mask=inside)
    once = (i < queries) & (tl.program_id(2) == 0)
    tl.store(lse + bh * queries + i, tl.where(empty, 0.0, highest + tl.log(total)), mask=once)


@triton.jit(do_not_specialize=["queries", "keys"])
def backward_queries(
    q, k, v, values, table, rows, begin, end, keep, seed, lse, delta, out_gradient, dq, dv, dtable,
    queries, keys, heads, width, value_width, table_b, table_h, table_i, table_rows,
    SLOPE: tl.constexpr, RATE: tl.constexpr, WIDE: tl.constexpr,
    BI: tl.constexpr, BJ: tl.constexpr, BD: tl.constexpr, BV: tl.constexpr, BR: tl.constexpr,
):  # fmt: skip
    """Gradients of q, `b h d i`, of v, from each query `b h d i`, and of the table, `b h i r`."""
    bh = tl.program_id(0).to(tl.int64)
    b, h = bh // heads, bh % heads
    i = tl.program_id(1) * BI + tl.arange(0, BI)
    columns = tl.arange(0, BD)
    first_d = tl.program_id(2) * BD
    q, k, v = q + bh * width * queries, k + bh * width * keys, v + h * width
    values += bh * keys * value_width
    out_gradient += bh * queries * value_width
    if table is not None:
        table += b * table_b + h * table_h
    if keep is not None:
        keep += b * keys
    begins, ends = ranges(begin, end, i, queries, keys)
    shift, mean = of_forward(lse, delta, bh, i, queries)
    of_q = tl.zeros([BI, BD], WIDE)
    of_v = tl.zeros([BI, BD], WIDE)
    if dtable is not None:
        first_r = tl.program_id(2) * BR
        of_table = tl.zeros([BI, BR], WIDE)
    for first in range(tl.min(begins, 0) // BJ * BJ, tl.max(ends, 0), BJ):
        j = first + tl.arange(0, BJ)
        s = scores(
            q, k, v, table, rows, begins, ends, keep, i, j, queries, keys, width, table_i,
            SLOPE, WIDE,
        )  # fmt: skip
        dp = weight_gradients(
            values, out_gradient, seed, bh, i, j, queries, keys, value_width, RATE, WIDE, BV,
        )  # fmt: skip
        ds = tl.exp(s - shift[:, None]) * (dp - mean[:, None])
        for n in range(0, tl.minimum(BD, width - first_d)):
            y = hidden(q, k, first_d + n, i, j, queries, keys, SLOPE, WIDE)
            here = (columns == n)[None, :]
            of_q += tl.where(here, tl.sum(ds * derivative(y, SLOPE), 1)[:, None], 0.0)
            of_v += tl.where(here, tl.sum(ds * y, 1)[:, None], 0.0)
        if dtable is not None:
            row = bias_rows(rows, i, j, queries, keys)
            for n in range(0, tl.minimum(BR, table_rows - first_r)):
                share = tl.sum(tl.where(row == first_r + n, ds, 0.0), 1)
                of_table += tl.where((tl.arange(0, BR) == n)[None, :], share[:, None], 0.0)
    d = first_d + columns
    inside = (i < queries)[:, None] & (d < width)[None, :]
    places = bh * width * queries + d[None, :] * queries + i[:, None]
    factor = tl.load(v + d, mask=d < width, other=0.0).to(WIDE)
    tl.store(dq + places, of_q * factor[None, :], mask=inside)
    tl.store(dv + places, of_v, mask=inside)
    if dtable is not None:
        r = first_r + tl.arange(0, BR)
        inside = (i < queries)[:, None] & (r < table_rows)[None, :]
        places = (bh * queries + i)[:, None] * table_rows + r[None, :]
        tl.store(dtable + places, of_table, mask=inside)


@triton.jit(do_not_specialize=["queries", "keys"])
def backward_keys(
    q, k, v, values, table, rows, begin, end, keep, seed, lse, delta, out_gradient, dk, dvalues,
    queries, keys, heads, width, value_width, table_b, table_h, table_i,
    SLOPE: tl.constexpr, RATE: tl.constexpr, WIDE: tl.constexpr,
    BI: tl.constexpr, BJ: tl.constexpr, BD: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """Gradients of k, `b h d j`, and of the values, `b h j w`."""
    bh = tl.program_id(0).to(tl.int64)
    b, h = bh // heads, bh % heads
    first_j = tl.program_id(1) * BJ
    j = first_j + tl.arange(0, BJ)
    w = tl.program_id(2) * BV + tl.arange(0, BV)
    columns = tl.arange(0, BD)
    first_d = tl.program_id(2) * BD
    q, k, v = q + bh * width * queries, k + bh * width * keys, v + h * width
    values += bh * keys * value_width
    out_gradient += bh * queries * value_width
    if table is not None:
        table += b * table_b + h * table_h
    if keep is not None:
        keep += b * keys
    of_k = tl.zeros([BJ, BD], WIDE)
    of_values = tl.zeros([BJ, BV], WIDE)
    for first in range(0, queries, BI):
        i = first + tl.arange(0, BI)
        begins, ends = ranges(begin, end, i, queries, keys)
        if (tl.min(begins, 0) < first_j + BJ) & (tl.max(ends, 0) > first_j):
            shift, mean = of_forward(lse, delta, bh, i, queries)
            s = scores(
                q, k, v, table, rows, begins, ends, keep, i, j, queries, keys, width, table_i,
                SLOPE, WIDE,
            )  # fmt: skip
            p = tl.exp(s - shift[:, None])
            mixed = dropped(p, seed, bh, i, j, queries, keys, RATE)
            do = matrix(out_gradient, i, w, queries, value_width, WIDE)
            of_values += tl.dot(tl.trans(mixed), do, input_precision="ieee", out_dtype=WIDE)
            dp = weight_gradients(
                values, out_gradient, seed, bh, i, j, queries, keys, value_width, RATE, WIDE, BV,
            )  # fmt: skip
            ds = p * (dp - mean[:, None])
            for n in range(0, tl.minimum(BD, width - first_d)):
                y = hidden(q, k, first_d + n, i, j, queries, keys, SLOPE, WIDE)
                share = tl.sum(ds * derivative(y, SLOPE), 0)
                of_k += tl.where((columns == n)[None, :], share[:, None], 0.0)
    d = first_d + columns
    inside = (j < keys)[:, None] & (d < width)[None, :]
    factor = tl.load(v + d, mask=d < width, other=0.0).to(WIDE)
    places = bh * width * keys + d[None, :] * keys + j[:, None]
    tl.store(dk + places, of_k * factor[None, :], mask=inside)
    inside = (j < keys)[:, None] & (w < value_width)[None, :]
    places = bh * keys * value_width + j[:, None] * value_width + w[None, :]
    tl.store(dvalues + places, of_values, mask=inside)
