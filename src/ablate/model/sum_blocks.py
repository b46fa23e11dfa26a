# mypy: disable-error-code="no-untyped-def"
"""What the kernels of sum_kernels.py compute of a block of queries and one of keys.

Letters and shapes are explained there.
"""

import triton
import triton.language as tl


@triton.jit
def hidden(q, k, d, i, j, queries, keys, SLOPE: tl.constexpr, WIDE: tl.constexpr):
    """f(q_id + k_jd) for one d: `i j`. f: LeakyReLU with this slope below 0; None: tanh."""
    mine = tl.load(q + d * queries + i, mask=i < queries, other=0.0).to(WIDE)
    other = tl.load(k + d * keys + j, mask=j < keys, other=0.0).to(WIDE)
    x = mine[:, None] + other[None, :]
    if SLOPE is None:  # noqa: SIM108
        y = 1 - 2 / (1 + tl.exp(2 * x))  # tanh: Triton has none that its interpreter knows
    else:
        y = tl.where(x > 0, x, SLOPE * x)
    return y


@triton.jit
def derivative(y, SLOPE: tl.constexpr):
    """Of f, whose value is y."""
    if SLOPE is None:
        slope = 1 - y * y
    else:
        slope = tl.where(y > 0, tl.full(y.shape, 1, y.dtype), tl.full(y.shape, SLOPE, y.dtype))
    return slope


@triton.jit
def bias_rows(rows, i, j, queries, keys):
    """The row of the table for every pair: `i j`."""
    there = (i < queries)[:, None] & (j < keys)[None, :]
    return tl.load(rows + (j[None, :] - i[:, None] + queries - 1), mask=there, other=0)


@triton.jit
def scores(
    q, k, v, table, rows, begin, end, keep, i, j, queries, keys, width, table_i,
    SLOPE: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """`i j`, -inf where a query does not see a key."""
    s = tl.zeros([i.shape[0], j.shape[0]], WIDE)
    for d in range(0, width):
        s += tl.load(v + d).to(WIDE) * hidden(q, k, d, i, j, queries, keys, SLOPE, WIDE)
    if table is not None:
        row = bias_rows(rows, i, j, queries, keys)
        bias = tl.load(table + i[:, None] * table_i + row, mask=(i < queries)[:, None], other=0.0)
        s += bias.to(WIDE)
    seen = (j[None, :] >= begin[:, None]) & (j[None, :] < end[:, None])
    if keep is not None:
        seen &= tl.load(keep + j, mask=j < keys, other=0)[None, :] != 0
    return tl.where(seen, s, -float("inf"))


@triton.jit
def dropped(x, seed, bh, i, j, queries, keys, RATE: tl.constexpr):
    """x after dropout: the draw depends on the seed and on the place in `b h i j` alone."""
    if RATE > 0:
        drawn = tl.rand(tl.load(seed), ((bh * queries + i)[:, None]) * keys + j[None, :])
        x = tl.where(drawn >= RATE, x * (1 / (1 - RATE)), 0.0)
    return x


@triton.jit
def matrix(x, rows, columns, height, width, WIDE: tl.constexpr):
    """A block of a matrix, 0 outside it."""
    inside = (rows < height)[:, None] & (columns < width)[None, :]
    return tl.load(x + rows[:, None] * width + columns[None, :], mask=inside, other=0.0).to(WIDE)


@triton.jit
def weight_gradients(
    values, out_gradient, seed, bh, i, j, queries, keys, value_width,
    RATE: tl.constexpr, WIDE: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """Of the weights before dropout: `i j`."""
    dp = tl.zeros([i.shape[0], j.shape[0]], WIDE)
    for first in range(0, value_width, BV):
        w = first + tl.arange(0, BV)
        do = matrix(out_gradient, i, w, queries, value_width, WIDE)
        value = matrix(values, j, w, keys, value_width, WIDE)
        dp += tl.dot(do, tl.trans(value), input_precision="ieee", out_dtype=WIDE)
    return dropped(dp, seed, bh, i, j, queries, keys, RATE)


@triton.jit
def ranges(begin, end, i, queries, keys):
    """Of the keys that each query sees, the first and the one after the last."""
    begins = tl.load(begin + i, mask=i < queries, other=keys)
    ends = tl.load(end + i, mask=i < queries, other=0)
    return begins, ends


@triton.jit
def of_forward(lse, delta, bh, i, queries):
    """What the backward pass knows of each query: the logarithm of its sum of exponentials, and
    its context times the gradient of it."""
    shift = tl.load(lse + bh * queries + i, mask=i < queries, other=0.0)
    mean = tl.load(delta + bh * queries + i, mask=i < queries, other=0.0)
    return shift, mean
