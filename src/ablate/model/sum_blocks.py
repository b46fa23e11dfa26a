# mypy: disable-error-code="no-untyped-def"
"""What the kernels of sum_kernels.py compute of a block of queries and one of keys.

Letters and shapes are explained there. A block goes either way round: J is the axis of its keys,
and ii and jj are the positions i and j as axes of a block, `[:, None]` or `[None, :]`.
"""

import os

import torch
import triton
import triton.language as tl

STEP = tl.constexpr(16)  # columns of a product at once: more of them need more registers
# Whether there is machine code of NVIDIA's for what is written in it.
NVIDIA = tl.constexpr(os.environ.get("TRITON_INTERPRET") != "1" and torch.version.hip is None)


@triton.jit
def reciprocal(x):
    """1 / x for x >= 1. Where it can, in one instruction, exact to the last bit but one, instead of
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
    """f for one d of every pair."""
    mine = tl.expand_dims(tl.load(q + d * i_d + i), J)
    other = tl.expand_dims(tl.load(k + d * j_d + j), 1 - J)
    if SLOPE is not None:
        x = mine + other
        y = tl.where(x > 0, x, SLOPE * x)
    elif APART:
        y = reciprocal(1 + mine * other)
    else:
        y = reciprocal(1 + tl.exp(2 * (mine + other)))
    return y


@triton.jit
def derivative(y, SLOPE: tl.constexpr):
    """Of f by q or by k, where f is y."""
    if SLOPE is None:
        slope = -2 * y * (1 - y)
    else:
        slope = tl.where(y > 0, tl.full(y.shape, 1, y.dtype), tl.full(y.shape, SLOPE, y.dtype))
    return slope


@triton.jit
def bias_rows(rows, ii, jj, queries, keys):
    """The row of the table for every pair."""
    inside = (ii < queries) & (jj < keys)
    return tl.load(rows + (jj - ii + queries - 1), mask=inside, other=0)


@triton.jit
def scores(
    q, k, v, table, rows, begins, ends, keep, i, j, queries, keys, width, i_d, j_d, table_i,
    J: tl.constexpr, SLOPE: tl.constexpr, APART: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """For every pair, -inf where a query does not see a key."""
    ii, jj = tl.expand_dims(i, J), tl.expand_dims(j, 1 - J)
    s = tl.zeros([ii.shape[0] * jj.shape[0], ii.shape[1] * jj.shape[1]], WIDE)
    # Four at once: the loads of one are under way while another is computed.
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
def dropped(x, seed, bh, ii, jj, queries, keys, RATE: tl.constexpr):
    """x after dropout: the draw depends on the seed and on the place in `b h i j` alone."""
    if RATE > 0:
        drawn = tl.rand(tl.load(seed), (bh * queries + ii) * keys + jj)
        x = tl.where(drawn >= RATE, x * (1 / (1 - RATE)), 0.0)
    return x


@triton.jit
def matrix(x, rows, columns, height, width, WIDE: tl.constexpr):
    """A block of a matrix, 0 outside it."""
    inside = (rows < height)[:, None] & (columns < width)[None, :]
    return tl.load(x + rows[:, None] * width + columns[None, :], mask=inside, other=0.0).to(WIDE)


@triton.jit
def products(x, y, m, n, height, length, width, WIDE: tl.constexpr):
    """Of every row m of a matrix x with every row n of y: `m n`."""
    sums = tl.zeros([m.shape[0], n.shape[0]], WIDE)
    for first in range(0, width, STEP):
        w = first + tl.arange(0, STEP)
        left = matrix(x, m, w, height, width, WIDE)
        right = matrix(y, n, w, length, width, WIDE)
        sums += tl.dot(left, tl.trans(right), input_precision="ieee", out_dtype=WIDE)
    return sums


@triton.jit
def ranges(begin, end, ii, queries, keys):
    """Of the keys that each query sees, the first and the one after the last."""
    begins = tl.load(begin + ii, mask=ii < queries, other=keys)
    ends = tl.load(end + ii, mask=ii < queries, other=0)
    return begins, ends


@triton.jit
def of_forward(lse, delta, bh, ii, queries):
    """What the backward pass knows of each query: the logarithm of its sum of exponentials, and
    its context times the gradient of it."""
    shift = tl.load(lse + bh * queries + ii, mask=ii < queries, other=0.0)
    mean = tl.load(delta + bh * queries + ii, mask=ii < queries, other=0.0)
    return shift, mean
