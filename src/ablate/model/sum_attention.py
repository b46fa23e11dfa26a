"""Attention by sums through Triton kernels, forward and backward: memory linear in the lengths.

Letters: b batch, h heads, i query, j key, d width of the sum, w that of a value, r row of the bias.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from ablate.model import sum_kernels as kernels
from ablate.model.tanh_sum import LIMITS

# Of a block of scores: its columns lie along the threads of a warp, its rows in each thread.
ROWS, COLUMNS = 64, 32
VALUES = 128  # of a value's width at once; the rest is left to other programs
WARPS = 2
WIDE = {torch.float32: tl.float32, torch.float64: tl.float64}


class Where(NamedTuple):
    """Who sees whom, and with what bias."""

    begin: Tensor  # i: the first key that a query sees
    end: Tensor  # i: one past the last
    keep: Tensor | None  # b j: True = a real key
    rows: Tensor | None  # of the table, for every distance from 1 - queries to keys - 1


@torch.compiler.disable  # a break of the graph: these kernels are compiled already
def sum_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    values: Tensor,
    table: Tensor | None,
    where: Where,
    *,
    slope: float | None,
    dropout: float,
) -> Tensor:
    """softmax_j(sum_d v_d f(q_id + k_jd) + bias_ij) values_j, for every query i.

    q: b h i d, k: b h j d, v: h d, values: b h j w -> b h i w. table, of the bias: b h i r or what
    broadcasts to it. f: the LeakyReLU with this slope below 0; None: tanh.
    """
    seed = torch.randint(2**62, (1,), device=q.device) if dropout else None
    if slope is None:  # tanh(x) = 1 - 2 / (1 + exp(2 x)), and a softmax does not see the 1
        v = -2 * v
    out: Tensor = SumAttention.apply(q, k, v, values, table, where, seed, dropout, slope)
    return out


class SumAttention(Function):
    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        values: Tensor,
        table: Tensor | None,
        where: Where,
        seed: Tensor | None,
        rate: float,
        slope: float | None,
    ) -> Tensor:
        (b, h, queries, width), (keys, value_width) = q.shape, values.shape[2:]
        ctx.dtypes = (q.dtype, k.dtype, v.dtype)
        wide = torch.promote_types(q.dtype, torch.float32)
        q, k, v = q.to(wide), k.to(wide), v.to(wide).contiguous()
        # Decided on the device: of the kernels for either case, one finds that it is not meant.
        apart = torch.ones((), dtype=torch.bool, device=q.device)
        ctx.cases = (True,)
        if slope is None:
            ctx.cases = (True, False)
            # Not a comparison with the largest: of NaN both would say no.
            apart = (q.abs() <= LIMITS[wide]).all() & (k.abs() <= LIMITS[wide]).all()
            q, k = (torch.where(apart, (2 * x).exp(), x) for x in (q, k))
        q, k = padded(q), padded(k)
        values = values.contiguous()
        out = values.new_empty(b, h, queries, value_width)
        lse = q.new_empty(b, h, queries)
        strides = [0, 0, 0]
        if table is not None:
            table = table.contiguous()
            strides = [table.stride(axis) if table.shape[axis] > 1 else 0 for axis in range(3)]
        keep = None if where.keep is None else where.keep.contiguous()
        inputs = (
            q, k, v, values, table, where.rows, apart, where.begin, where.end, keep, seed,
        )  # fmt: skip
        ctx.sizes = (
            queries, keys, h, width, value_width, q.shape[-1], k.shape[-1], *strides,
        )  # fmt: skip
        ctx.constants = {
            "SLOPE": slope, "RATE": rate, "WIDE": WIDE[wide], "BV": block(value_width),
            "num_stages": 1, "num_warps": WARPS,
        }  # fmt: skip
        grid = (b * h, triton.cdiv(queries, ROWS), triton.cdiv(value_width, VALUES))
        with torch.cuda.device_of(q):
            for case in ctx.cases:
                kernels.forward[grid](
                    *inputs, out, lse, *ctx.sizes, **ctx.constants, APART=case, BI=ROWS, BJ=COLUMNS
                )
        ctx.save_for_backward(*inputs, out, lse)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        *inputs, out, lse = ctx.saved_tensors
        q, k, v, values, table = inputs[:5]
        (b, h), (queries, keys) = q.shape[:2], ctx.sizes[:2]
        gradient = gradient.contiguous()
        delta = (gradient.to(lse.dtype) * out).sum(-1)
        # Of f, not of q and k yet; of v, from each query.
        df_dv, df, dvalues = q.new_zeros(*q.shape, 2), torch.zeros_like(k), torch.empty_like(values)
        rows = table.shape[-1] if ctx.needs_input_grad[4] else 0
        dtable = q.new_zeros(b, h, rows, q.shape[-1]) if rows else None
        given = (*inputs, lse, delta, gradient)
        mine = (b * h, triton.cdiv(queries, COLUMNS))
        others = (b * h, triton.cdiv(keys, COLUMNS), triton.cdiv(values.shape[-1], VALUES))
        with torch.cuda.device_of(q):
            for case in ctx.cases:
                constants = ctx.constants | {"APART": case}
                kernels.backward_queries[mine](
                    *given, df_dv, dtable, *ctx.sizes, rows, **constants, BI=COLUMNS, BJ=ROWS
                )
                kernels.backward_keys[others](
                    *given, df, dvalues, *ctx.sizes, **constants, BI=ROWS, BJ=COLUMNS
                )
        factor = v[:, None]
        dq = (df_dv[..., :queries, 0].mT * factor).to(ctx.dtypes[0])
        dk = (df[..., :keys].mT * factor).to(ctx.dtypes[1])
        dv = df_dv[..., 1].sum((0, 3)).to(ctx.dtypes[2])
        if dtable is not None:
            dtable = dtable[..., :queries].mT.sum_to_size(table.shape).to(table.dtype)
        return dq, dk, dv, dvalues, dtable, None, None, None, None


def padded(x: Tensor) -> Tensor:
    """b h i d -> b h d i in whole blocks, so that nothing is read or added outside."""
    return F.pad(x.mT, (0, -x.shape[2] % max(ROWS, COLUMNS))).contiguous()


def block(columns: int) -> int:
    """Columns of a block: a power of two, and no fewer than tl.dot takes."""
    return min(VALUES, max(16, triton.next_power_of_2(columns)))
