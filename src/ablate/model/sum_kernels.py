# mypy: disable-error-code="no-untyped-def"
"""Triton kernels of attention by sums: score_ij = sum_d v_d f(q_id, k_jd).

f is LeakyReLU(q + k), or 1 / (1 + exp(2 (q + k))), which is (1 - tanh) / 2: sums of tanh with
weights v are those of it with -2 v, but for a number that a softmax does not see. Where `apart` is
true, q and k are exp(2 q) and exp(2 k) already and f is 1 / (1 + q k): an exponential less a pair.

Softmax as it comes by, as in Dao et al. 2022, "FlashAttention", https://arxiv.org/abs/2205.14135: a
program has a block of queries (or keys) and meets the others block by block, so that neither a
tensor of queries x keys nor one of queries x keys x width is ever made: of a block of scores the
width is a loop. The backward pass makes the scores anew, once for what belongs to queries and once
for what belongs to keys, so that every number is written by one program and sums have one order.
There the columns of a block are what a gradient belongs to, so that a thread sums what it holds.
What is summed for each d is added to memory at once, since a thread could not hold it.

q and k come with the width before the positions, `b h d i` and `b h d j`, in whole blocks: i_d and
j_d apart from one d to the next. Values are `b h j w`. A query sees the keys `begin` to `end`
(exclusive), of them those to `keep`. The bias is table[b, h, i, rows[j - i + queries - 1]]. q, k, v
and all that is computed are WIDE. Values wider than a block, as heads of recurrent models are, are
split: program_id(2) counts the blocks.
"""

import triton
import triton.language as tl

from ablate.model.sum_blocks import (
    bias_rows,
    derivative,
    dropped,
    matrix,
    of_forward,
    products,
    ranges,
    scores,
    term,
)


@triton.jit(do_not_specialize=["queries", "keys"])
def forward(
    q, k, v, values, table, rows, apart, begin, end, keep, seed, out, lse,
    queries, keys, heads, width, value_width, i_d, j_d, table_b, table_h, table_i,
    SLOPE: tl.constexpr, RATE: tl.constexpr, WIDE: tl.constexpr, APART: tl.constexpr,
    BI: tl.constexpr, BJ: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """The context, `b h i w`, and the logarithm of the sum of exponentials, `b h i`."""
    if tl.load(apart) != APART:
        return
    bh = tl.program_id(0).to(tl.int64)
    b, h = bh // heads, bh % heads
    i = tl.program_id(1) * BI + tl.arange(0, BI)
    w = tl.program_id(2) * BV + tl.arange(0, BV)
    q, k, v = q + bh * width * i_d, k + bh * width * j_d, v + h * width
    values, out = values + bh * keys * value_width, out + bh * queries * value_width
    if table is not None:
        table += b * table_b + h * table_h
    if keep is not None:
        keep += b * keys
    ii = i[:, None]
    begins, ends = ranges(begin, end, ii, queries, keys)
    highest = tl.full([BI], -float("inf"), WIDE)
    total = tl.zeros([BI], WIDE)
    context = tl.zeros([BI, BV], WIDE)
    for first in range(tl.min(begins) // BJ * BJ, tl.max(ends), BJ):
        j = first + tl.arange(0, BJ)
        jj = j[None, :]
        s = scores(
            q, k, v, table, rows, begins, ends, keep, i, j, queries, keys, width, i_d, j_d, table_i,
            1, SLOPE, APART, WIDE,
        )  # fmt: skip
        higher = tl.maximum(highest, tl.max(s, 1))
        base = tl.where(higher == -float("inf"), 0.0, higher)  # nothing seen so far
        p = tl.exp(s - base[:, None])
        shrink = tl.exp(highest - base)
        total = total * shrink + tl.sum(p, 1)
        p = dropped(p, seed, bh, ii, jj, queries, keys, RATE)
        value = matrix(values, j, w, keys, value_width, WIDE)
        mixed = tl.dot(p, value, input_precision="ieee", out_dtype=WIDE)
        context = context * shrink[:, None] + mixed
        highest = higher
    empty = highest == -float("inf")
    total = tl.where(empty, 1.0, total)
    inside = (i < queries)[:, None] & (w < value_width)[None, :]
    tl.store(out + i[:, None] * value_width + w[None, :], context / total[:, None], mask=inside)
    if tl.program_id(2) == 0:  # the programs of other blocks of the values know the same
        known = tl.where(empty, 0.0, highest + tl.log(total))
        tl.store(lse + bh * queries + i, known, mask=i < queries)


@triton.jit(do_not_specialize=["queries", "keys"])
def backward_queries(
    q, k, v, values, table, rows, apart, begin, end, keep, seed, lse, delta, out_gradient,
    df_dv, dtable,
    queries, keys, heads, width, value_width, i_d, j_d, table_b, table_h, table_i, table_rows,
    SLOPE: tl.constexpr, RATE: tl.constexpr, WIDE: tl.constexpr, APART: tl.constexpr,
    BI: tl.constexpr, BJ: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """Adds to the gradients of f, summed by the query and by v, `b h d i 2`, and of the table,
    `b h r i`."""
    if tl.load(apart) != APART:
        return
    bh = tl.program_id(0).to(tl.int64)
    b, h = bh // heads, bh % heads
    i = tl.program_id(1) * BI + tl.arange(0, BI)
    q, k, v = q + bh * width * i_d, k + bh * width * j_d, v + h * width
    df_dv += bh * width * i_d * 2
    both = tl.arange(0, 2)[None, :]
    values += bh * keys * value_width
    out_gradient += bh * queries * value_width
    if table is not None:
        table += b * table_b + h * table_h
    if dtable is not None:
        dtable += bh * table_rows * i_d
    if keep is not None:
        keep += b * keys
    ii = i[None, :]
    begins, ends = ranges(begin, end, ii, queries, keys)
    shift, mean = of_forward(lse, delta, bh, ii, queries)
    for first in range(tl.min(begins) // BJ * BJ, tl.max(ends), BJ):
        j = first + tl.arange(0, BJ)
        jj = j[:, None]
        s = scores(
            q, k, v, table, rows, begins, ends, keep, i, j, queries, keys, width, i_d, j_d, table_i,
            0, SLOPE, APART, WIDE,
        )  # fmt: skip
        dp = products(values, out_gradient, j, i, keys, queries, value_width, WIDE)
        dp = dropped(dp, seed, bh, ii, jj, queries, keys, RATE)
        ds = tl.exp(s - shift) * (dp - mean)
        for d in range(0, width):
            y = term(q, k, d, i, j, i_d, j_d, 0, SLOPE, APART)
            sums = tl.sum(tl.join(ds * derivative(y, SLOPE), ds * y), 0)
            tl.atomic_add(df_dv + (d * i_d + i[:, None]) * 2 + both, sums, sem="relaxed")
        if dtable is not None:
            row = bias_rows(rows, ii, jj, queries, keys)
            for r in range(0, table_rows):
                of_row = tl.sum(tl.where(row == r, ds, 0.0), 0)
                tl.atomic_add(dtable + r * i_d + i, of_row, sem="relaxed")


@triton.jit(do_not_specialize=["queries", "keys"])
def backward_keys(
    q, k, v, values, table, rows, apart, begin, end, keep, seed, lse, delta, out_gradient,
    df, dvalues,
    queries, keys, heads, width, value_width, i_d, j_d, table_b, table_h, table_i,
    SLOPE: tl.constexpr, RATE: tl.constexpr, WIDE: tl.constexpr, APART: tl.constexpr,
    BI: tl.constexpr, BJ: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """Adds to the gradient of f, summed by the key, `b h d j`, and writes that of the values,
    `b h j w`."""
    if tl.load(apart) != APART:
        return
    bh = tl.program_id(0).to(tl.int64)
    b, h = bh // heads, bh % heads
    first_j = tl.program_id(1) * BJ
    j = first_j + tl.arange(0, BJ)
    w = tl.program_id(2) * BV + tl.arange(0, BV)
    q, k, v = q + bh * width * i_d, k + bh * width * j_d, v + h * width
    df += bh * width * j_d
    values += bh * keys * value_width
    out_gradient += bh * queries * value_width
    if table is not None:
        table += b * table_b + h * table_h
    if keep is not None:
        keep += b * keys
    jj = j[None, :]
    of_values = tl.zeros([BJ, BV], WIDE)
    for first in range(0, queries, BI):
        i = first + tl.arange(0, BI)
        ii = i[:, None]
        begins, ends = ranges(begin, end, ii, queries, keys)
        if (tl.min(begins) < first_j + BJ) & (tl.max(ends) > first_j):
            shift, mean = of_forward(lse, delta, bh, ii, queries)
            s = scores(
                q, k, v, table, rows, begins, ends, keep, i, j, queries, keys, width, i_d, j_d,
                table_i, 1, SLOPE, APART, WIDE,
            )  # fmt: skip
            p = tl.exp(s - shift)
            mixed = dropped(p, seed, bh, ii, jj, queries, keys, RATE)
            do = matrix(out_gradient, i, w, queries, value_width, WIDE)
            of_values += tl.dot(tl.trans(mixed), do, input_precision="ieee", out_dtype=WIDE)
            if tl.program_id(2) == 0:
                dp = products(out_gradient, values, i, j, queries, keys, value_width, WIDE)
                dp = dropped(dp, seed, bh, ii, jj, queries, keys, RATE)
                ds = p * (dp - mean)
                for d in range(0, width):
                    y = term(q, k, d, i, j, i_d, j_d, 1, SLOPE, APART)
                    total = tl.sum(ds * derivative(y, SLOPE), 0)
                    tl.atomic_add(df + d * j_d + j, total, sem="relaxed")
    inside = (j < keys)[:, None] & (w < value_width)[None, :]
    places = bh * keys * value_width + j[:, None] * value_width + w[None, :]
    tl.store(dvalues + places, of_values, mask=inside)
