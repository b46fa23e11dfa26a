# mypy: disable-error-code="no-untyped-def"
"""Triton kernels of additive attention: score_ij = sum_d v_d f(q_id, k_jd).

f is LeakyReLU(q + k), or 1 / (1 + exp(2 (q + k))), which is (1 - tanh) / 2: with weights -2 v it
equals the tanh score with weights v up to a constant, which the softmax ignores. If `apart` is
true, q and k are exp(2 q) and exp(2 k) already and f is 1 / (1 + q k): one exponential per pair
less.

Online softmax, as in Dao et al. 2022, "FlashAttention", https://arxiv.org/abs/2205.14135: a program
has a block of queries (or keys) and loops over the blocks of the others, so that neither a tensor
of queries x keys nor one of queries x keys x width is ever made: a block of scores is summed over
the width in a loop. The backward pass recomputes the scores twice, for the gradients of queries and
for those of keys, so that every number is written by one program and sums have one order. There the
columns of a block are the side whose gradient is computed, so that a thread sums its own values.
Sums for each d are added to memory at once, since they do not fit a thread.

q and k are stored width first, `b h d i` and `b h d j`, padded to whole blocks, with strides i_d
and j_d along d. Values are `b h j w`. A query attends to the keys `begin` to `end` (exclusive) that
`keep` allows. The bias is table[b, h, i, rows[j - i + queries - 1]]. q, k, v and all intermediate
results have the type WIDE. Values wider than a block, as in recurrent models, are split:
program_id(2) is the number of the block.
"""

import os

import torch
import triton
import triton.language as tl

from ablate.random import draws

STEP = tl.constexpr(16)  # columns multiplied at once: more of them need more registers
INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")
# Whether inline assembly for NVIDIA GPUs can be used.
NVIDIA = tl.constexpr(not INTERPRETED.value and torch.version.hip is None)

# The counters and factors of dropout's draws.
LANES, ROW, HEAD = tl.constexpr(draws.LANES), tl.constexpr(draws.ROW), tl.constexpr(draws.HEAD)
EXAMPLE, GOLDEN = tl.constexpr(draws.EXAMPLE), tl.constexpr(draws.signed(draws.GOLDEN))
FIRST, SECOND = (tl.constexpr(draws.signed(number)) for number in (draws.FIRST, draws.SECOND))


@triton.jit
def reciprocal(x):
    """1 / x for x >= 1. On NVIDIA GPUs one instruction, exact to the last bit but one, instead of
    six that subnormal numbers need."""
    if NVIDIA:
        y = tl.inline_asm_elementwise(
            "rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        y = 1 / x
    return y


@triton.jit
def term(q, k, d, i, j, i_d, j_d, J: tl.constexpr, SLOPE: tl.constexpr, APART: tl.constexpr):
    """f of every pair for one d."""
    query = tl.expand_dims(tl.load(q + d * i_d + i), J)
    other = tl.expand_dims(tl.load(k + d * j_d + j), 1 - J)
    if SLOPE is not None:
        x = query + other
        y = tl.where(x > 0, x, SLOPE * x)
    elif APART:
        y = reciprocal(1 + query * other)
    else:
        y = reciprocal(1 + tl.exp(2 * (query + other)))
    return y


@triton.jit
def derivative(y, SLOPE: tl.constexpr):
    """The derivative of f with respect to q or k, given y = f."""
    if SLOPE is None:
        slope = -2 * y * (1 - y)
    else:
        slope = tl.where(y > 0, tl.full(y.shape, 1, y.dtype), tl.full(y.shape, SLOPE, y.dtype))
    return slope


@triton.jit
def bias_rows(rows, ii, jj, queries, keys):
    """The row of the bias table for every pair."""
    inside = (ii < queries) & (jj < keys)
    return tl.load(rows + (jj - ii + queries - 1), mask=inside, other=0)


@triton.jit
def scores(
    q, k, v, table, rows, begins, ends, keep, i, j, queries, keys, width, i_d, j_d, table_i,
    J: tl.constexpr, SLOPE: tl.constexpr, APART: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """The score of every pair, with its bias; -inf if the pair is masked."""
    ii, jj = tl.expand_dims(i, J), tl.expand_dims(j, 1 - J)
    s = tl.zeros([ii.shape[0] * jj.shape[0], ii.shape[1] * jj.shape[1]], WIDE)
    # Unrolled by four, so that loads overlap with computation.
    for d in tl.range(0, width, loop_unroll_factor=4):
        s += tl.load(v + d) * term(q, k, d, i, j, i_d, j_d, J, SLOPE, APART)
    if table is not None:
        row, inside = bias_rows(rows, ii, jj, queries, keys), (ii < queries) & (jj < keys)
        s += tl.load(table + ii * table_i + row, mask=inside, other=0.0).to(WIDE)
    seen = (jj >= begins) & (jj < ends)
    if keep is not None:
        seen &= tl.load(keep + jj, mask=jj < keys, other=0) != 0
    return tl.where(seen, s, -float("inf"))


@triton.jit
def dropped(x, stream, b, h, ii, jj, RATE: tl.constexpr, DROPPED: tl.constexpr):
    """x after dropout, with the draws of ablate.random.draws. DROPPED: how many of the 2^16
    numbers drop a unit."""
    if DROPPED > 0:
        index = b * EXAMPLE + h * HEAD + ii.to(tl.int64) * ROW + (jj // LANES).to(tl.int64)
        n = index * GOLDEN + tl.load(stream)
        n = (n ^ ((n >> 30) & 0x3FFFFFFFF)) * FIRST
        n = (n ^ ((n >> 27) & 0x1FFFFFFFFF)) * SECOND
        n = n ^ ((n >> 31) & 0x1FFFFFFFF)
        lane = (n >> (16 * (jj % LANES)).to(tl.int64)) & 0xFFFF
        drawn = lane ^ 0x8000  # of an int16, counted from its lowest
        x = tl.where(drawn >= DROPPED, x * (1 / (1 - RATE)), 0.0)
    return x


@triton.jit
def matrix(x, rows, columns, height, width):
    """A block of a matrix, zero out of bounds."""
    inside = (rows < height)[:, None] & (columns < width)[None, :]
    return tl.load(x + rows[:, None] * width + columns[None, :], mask=inside, other=0.0)


@triton.jit
def weighted(weights, x, WIDE: tl.constexpr):
    """The product of a block of weights and one of a matrix.

    In 16 bits on tensor cores, the rounded weights and the rounding errors multiplied separately:
    that is as exact as a product in float32. The interpreter computes such products wrongly.
    """
    if x.dtype.primitive_bitwidth == 16 and not INTERPRETED:
        high = weights.to(x.dtype)
        low = (weights - high.to(WIDE)).to(x.dtype)
        y = tl.dot(high, x, out_dtype=WIDE) + tl.dot(low, x, out_dtype=WIDE)
    else:
        y = tl.dot(weights, x.to(WIDE), input_precision="ieee", out_dtype=WIDE)
    return y


@triton.jit
def products(x, y, m, n, height, length, width, WIDE: tl.constexpr):
    """Dot products of every row m of a matrix x with every row n of y: `m n`; exact in 16 bits."""
    sums = tl.zeros([m.shape[0], n.shape[0]], WIDE)
    for first in range(0, width, STEP):
        w = first + tl.arange(0, STEP)
        left = matrix(x, m, w, height, width)
        right = matrix(y, n, w, length, width)
        if INTERPRETED:
            left, right = left.to(WIDE), right.to(WIDE)
        sums += tl.dot(left, tl.trans(right), input_precision="ieee", out_dtype=WIDE)
    return sums


@triton.jit
def ranges(begin, end, ii, queries, keys):
    """The half-open range of keys that each query attends to."""
    begins = tl.load(begin + ii, mask=ii < queries, other=keys)
    ends = tl.load(end + ii, mask=ii < queries, other=0)
    return begins, ends


@triton.jit
def of_forward(lse, delta, bh, ii, queries):
    """Of each query, for the backward pass: the log-sum-exp of its scores, and the dot product of
    its context and the gradient of its context."""
    shift = tl.load(lse + bh * queries + ii, mask=ii < queries, other=0.0)
    mean = tl.load(delta + bh * queries + ii, mask=ii < queries, other=0.0)
    return shift, mean


@triton.jit(do_not_specialize=["queries", "keys"])
def forward(
    q, k, v, values, table, rows, apart, begin, end, keep, stream, out, lse,
    queries, keys, heads, width, value_width, i_d, j_d, table_b, table_h, table_i,
    SLOPE: tl.constexpr, RATE: tl.constexpr, DROPPED: tl.constexpr, WIDE: tl.constexpr,
    APART: tl.constexpr, BI: tl.constexpr, BJ: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """Writes the context, `b h i w`, and the log-sum-exp of the scores, `b h i`."""
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
        base = tl.where(higher == -float("inf"), 0.0, higher)  # no key so far
        p = tl.exp(s - base[:, None])
        shrink = tl.exp(highest - base)
        total = total * shrink + tl.sum(p, 1)
        p = dropped(p, stream, b, h, ii, jj, RATE, DROPPED)
        mixed = weighted(p, matrix(values, j, w, keys, value_width), WIDE)
        context = context * shrink[:, None] + mixed
        highest = higher
    empty = highest == -float("inf")
    total = tl.where(empty, 1.0, total)
    inside = (i < queries)[:, None] & (w < value_width)[None, :]
    tl.store(out + i[:, None] * value_width + w[None, :], context / total[:, None], mask=inside)
    if tl.program_id(2) == 0:  # programs of other value blocks compute the same
        known = tl.where(empty, 0.0, highest + tl.log(total))
        tl.store(lse + bh * queries + i, known, mask=i < queries)


@triton.jit(do_not_specialize=["queries", "keys"])
def backward_queries(
    q, k, v, values, table, rows, apart, begin, end, keep, stream, lse, delta, out_gradient,
    df_dv, dtable,
    queries, keys, heads, width, value_width, i_d, j_d, table_b, table_h, table_i, table_rows,
    SLOPE: tl.constexpr, RATE: tl.constexpr, DROPPED: tl.constexpr, WIDE: tl.constexpr,
    APART: tl.constexpr, BI: tl.constexpr, BJ: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """Adds to the gradients for q, without the factor v, and for v, per query, `b h d i 2`, and to
    that of the table, `b h r i`."""
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
        dp = dropped(dp, stream, b, h, ii, jj, RATE, DROPPED)
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
    q, k, v, values, table, rows, apart, begin, end, keep, stream, lse, delta, out_gradient,
    df, dvalues,
    queries, keys, heads, width, value_width, i_d, j_d, table_b, table_h, table_i,
    SLOPE: tl.constexpr, RATE: tl.constexpr, DROPPED: tl.constexpr, WIDE: tl.constexpr,
    APART: tl.constexpr, BI: tl.constexpr, BJ: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """Adds to the gradient for k, without the factor v, `b h d j`, and writes that of the values,
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
            mixed = dropped(p, stream, b, h, ii, jj, RATE, DROPPED)
            do = matrix(out_gradient, i, w, queries, value_width)
            of_values += weighted(tl.trans(mixed), do, WIDE)
            if tl.program_id(2) == 0:
                dp = products(out_gradient, values, i, j, queries, keys, value_width, WIDE)
                dp = dropped(dp, stream, b, h, ii, jj, RATE, DROPPED)
                ds = p * (dp - mean)
                for d in range(0, width):
                    y = term(q, k, d, i, j, i_d, j_d, 1, SLOPE, APART)
                    total = tl.sum(ds * derivative(y, SLOPE), 0)
                    tl.atomic_add(df + d * j_d + j, total, sem="relaxed")
    inside = (j < keys)[:, None] & (w < value_width)[None, :]
    offsets = bh * keys * value_width + j[:, None] * value_width + w[None, :]
    tl.store(dvalues + offsets, of_values, mask=inside)
