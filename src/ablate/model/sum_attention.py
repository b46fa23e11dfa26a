"""Attention by sums through Triton kernels, forward and backward: memory linear in the lengths.

Letters: b batch, h heads, i query, j key, d width of the sum, w that of a value, r row of the bias.
"""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from ablate.model import sum_kernels as kernels

TILE = 32  # queries and keys of a block of scores
COLUMNS = 128  # of width, value and bias at once; the rest is left to other programs
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
        wide = torch.promote_types(q.dtype, torch.float32)
        q, k, values = q.mT.contiguous(), k.mT.contiguous(), values.contiguous()
        out = values.new_empty(b, h, queries, value_width)
        lse = q.new_empty(b, h, queries, dtype=wide)
        strides = [0, 0, 0]
        if table is not None:
            table = table.contiguous()
            strides = [table.stride(axis) if table.shape[axis] > 1 else 0 for axis in range(3)]
        keep = None if where.keep is None else where.keep.contiguous()
        inputs = (
            q, k, v.contiguous(), values, table, where.rows, where.begin, where.end, keep, seed,
        )  # fmt: skip
        ctx.sizes = (queries, keys, h, width, value_width, *strides)
        ctx.constants = {
            "SLOPE": slope, "RATE": rate, "WIDE": WIDE[wide], "BI": TILE, "BJ": TILE,
            "BV": block(value_width), "num_stages": 1,
            "num_warps": 4 if max(width, value_width) <= 32 else 8,  # fewer spill registers
        }  # fmt: skip
        grid = (b * h, triton.cdiv(queries, TILE), triton.cdiv(value_width, COLUMNS))
        with torch.cuda.device_of(q):
            kernels.forward[grid](*inputs, out, lse, *ctx.sizes, **ctx.constants)
        ctx.save_for_backward(*inputs, out, lse)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        *inputs, out, lse = ctx.saved_tensors
        q, k, v, values, table = inputs[:5]
        b, h, width, queries = q.shape
        keys, value_width = values.shape[2:]
        gradient = gradient.contiguous()
        delta = (gradient.to(lse.dtype) * out).sum(-1)
        dq, dk, dvalues = torch.empty_like(q), torch.empty_like(k), torch.empty_like(values)
        dv = torch.empty_like(q, dtype=lse.dtype)
        rows = table.shape[-1] if ctx.needs_input_grad[4] else 0
        dtable = lse.new_empty(b, h, queries, rows) if rows else None
        constants = ctx.constants | {"BD": block(width)}
        given = (*inputs, lse, delta, gradient)
        mine = triton.cdiv(max(width, rows), COLUMNS)
        others = triton.cdiv(max(width, value_width), COLUMNS)
        with torch.cuda.device_of(q):
            kernels.backward_queries[b * h, triton.cdiv(queries, TILE), mine](
                *given, dq, dv, dtable, *ctx.sizes, rows, **constants, BR=block(rows)
            )
            kernels.backward_keys[b * h, triton.cdiv(keys, TILE), others](
                *given, dk, dvalues, *ctx.sizes, **constants
            )
        dv = dv.sum((0, 3)).to(v.dtype)
        if dtable is not None:
            dtable = dtable.sum_to_size(table.shape).to(table.dtype)
        return dq.mT, dk.mT, dv, dvalues, dtable, None, None, None, None


def block(columns: int) -> int:
    """Columns of a block: a power of two, and no fewer than tl.dot takes."""
    return min(COLUMNS, max(16, triton.next_power_of_2(columns)))
