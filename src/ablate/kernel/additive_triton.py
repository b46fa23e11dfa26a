"""Additive attention with Triton kernels, forward and backward: memory linear in the lengths.

Letters: b batch, h heads, i query, j key, d width of the sum, w width of a value, r row of the bias
table.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from ablate.kernel import additive_triton_kernels as kernels
from ablate.kernel.additive_cpu import LIMITS
from ablate.random.dropout import BITS

# Size of a block of scores: columns lie along the threads of a warp, rows within a thread.
ROWS, COLUMNS = 64, 32
VALUES = 128  # width of a block of values; other programs compute the other blocks
WARPS = 2
WIDE = {torch.float32: tl.float32, torch.float64: tl.float64}


class Where(NamedTuple):
    """The mask, and the row of the bias table for each distance."""

    begin: Int[Tensor, " i"]  # the first key that a query attends to
    end: Int[Tensor, " i"]  # one past the last
    keep: Bool[Tensor, "b j"] | None  # True = a real key
    # The row of the table for every distance from 1 - queries to keys - 1.
    rows: Int[Tensor, " i+j-1"] | None


def sum_attention(
    q: Float[Tensor, "b h i d"],
    k: Float[Tensor, "b h j d"],
    v: Float[Tensor, "h d"],
    values: Float[Tensor, "b h j w"],
    table: Float[Tensor, "#b #h #i r"] | None,
    where: Where,
    *,
    slope: float | None,
    dropout: float,
    stream: Int[Tensor, ""] | None,
) -> Float[Tensor, "b h i w"]:
    """softmax_j(sum_d v_d f(q_id + k_jd) + bias_ij) values_j, for every query i.

    table: the bias. slope: f is the LeakyReLU with this negative slope; None: f is tanh. stream:
    key of the draws of dropout: see ablate.random.draws.
    """
    if slope is None:  # tanh(x) = 1 - 2 / (1 + exp(2 x)), and the softmax ignores the constant
        v = -2 * v
    args = (values, table, where.rows, where.begin, where.end, where.keep, stream, dropout, slope)
    out, _ = attention(q, k, v, *args)
    return out


# Custom operators, which torch.compile treats as opaque; both take the arguments of Program.
GIVEN = (
    "Tensor q, Tensor k, Tensor v, Tensor values, Tensor? table, Tensor? rows, Tensor begin,"
    " Tensor end, Tensor? keep, Tensor? stream, float rate, float? slope"
)


@torch.library.custom_op(
    "ablate::sum_attention", mutates_args=(), schema=f"({GIVEN}) -> (Tensor, Tensor)"
)
def attention(*args: Any) -> tuple[Tensor, Tensor]:
    """The context, and the log-sum-exp of each query's scores, b h i."""
    program, (q, _, _, values) = Program(*args), args[:4]
    (b, h, queries, _), value_width = q.shape, values.shape[-1]
    out, lse = values.new_empty(b, h, queries, value_width), program.q.new_empty(b, h, queries)
    grid = (b * h, triton.cdiv(queries, ROWS), triton.cdiv(value_width, VALUES))
    program.run(kernels.forward, grid, (out, lse), BI=ROWS, BJ=COLUMNS)
    return out, lse


@torch.library.custom_op(
    "ablate::sum_attention_backward",
    mutates_args=(),
    schema=f"(Tensor gradient, Tensor out, Tensor lse, bool of_table, {GIVEN})"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
)
def gradients(
    gradient: Tensor, out: Tensor, lse: Tensor, of_table: bool, *args: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k, v, the values and the table; that of the table is empty unless wanted."""
    program, (q, k, v, values, table) = Program(*args), args[:5]
    (b, h, queries, _), (keys, value_width) = q.shape, values.shape[2:]
    gradient = gradient.contiguous()
    known = (lse, (gradient.to(lse.dtype) * out).sum(-1), gradient)
    # Gradients for q (and v, per query) and for k; those for q and k still lack the factor v.
    by_query, by_key = program.q.new_zeros(*program.q.shape, 2), torch.zeros_like(program.k)
    dvalues = values.new_empty(values.shape)
    count = table.shape[-1] if table is not None and of_table else 0
    by_row = by_key.new_zeros(b, h, count, program.q.shape[-1]) if count else None
    grid: tuple[int, ...] = (b * h, triton.cdiv(queries, COLUMNS))
    outputs = (*known, by_query, by_row)
    program.run(kernels.backward_queries, grid, outputs, table_rows=count, BI=COLUMNS, BJ=ROWS)
    grid = (b * h, triton.cdiv(keys, COLUMNS), triton.cdiv(value_width, VALUES))
    program.run(kernels.backward_keys, grid, (*known, by_key, dvalues), BI=ROWS, BJ=COLUMNS)
    factor = v.to(lse.dtype)[:, None]
    dq = (by_query[..., :queries, 0].mT * factor).to(q.dtype).contiguous()
    dk = (by_key[..., :keys].mT * factor).to(k.dtype).contiguous()
    dv = by_query[..., 1].sum((0, 3)).to(v.dtype)
    dtable = v.new_empty(0)
    if table is not None and by_row is not None:
        dtable = by_row[..., :queries].mT.sum_to_size(table.shape).to(table.dtype).contiguous()
    return dq, dk, dv, dvalues, dtable


class Program:
    """The arguments of all kernels in their layout: see ablate.kernel.additive_triton_kernels."""

    def __init__(
        self,
        q: Float[Tensor, "b h i d"],
        k: Float[Tensor, "b h j d"],
        v: Float[Tensor, "h d"],
        values: Float[Tensor, "b h j w"],
        table: Float[Tensor, "#b #h #i r"] | None,
        rows: Int[Tensor, " distances"] | None,
        begin: Int[Tensor, " i"],
        end: Int[Tensor, " i"],
        keep: Bool[Tensor, "b j"] | None,
        stream: Int[Tensor, ""] | None,
        rate: float,
        slope: float | None,
    ) -> None:
        (_, heads, queries, width), (keys, value_width) = q.shape, values.shape[2:]
        wide = torch.promote_types(q.dtype, torch.float32)
        q, k, v = q.to(wide), k.to(wide), v.to(wide).contiguous()
        # Decided on the device: kernels for both cases are launched, and one returns at once.
        apart, self.cases = torch.ones((), dtype=torch.bool, device=q.device), [True]
        if slope is None:
            # Elementwise, so that NaN fails the test; with max() > limit it would pass.
            apart = (q.abs() <= LIMITS[wide]).all() & (k.abs() <= LIMITS[wide]).all()
            q, k = (torch.where(apart, (2 * x).exp(), x) for x in (q, k))
            self.cases = [True, False]
        self.q, self.k = padded(q), padded(k)
        strides = [0, 0, 0]
        if table is not None:
            table = table.contiguous()
            strides = [table.stride(axis) if table.shape[axis] > 1 else 0 for axis in range(3)]
        self.inputs = (
            self.q, self.k, v, values.contiguous(), table, rows, apart, begin, end,
            None if keep is None else keep.contiguous(), stream,
        )  # fmt: skip
        self.sizes = (
            queries, keys, heads, width, value_width, self.q.shape[-1], self.k.shape[-1], *strides,
        )  # fmt: skip
        self.constants = {
            "SLOPE": slope, "RATE": rate, "DROPPED": round(rate * 2**BITS), "WIDE": WIDE[wide],
            "BV": block(value_width), "num_stages": 1, "num_warps": WARPS,
        }  # fmt: skip

    def run(
        self,
        kernel: Any,
        grid: tuple[int, ...],
        more: tuple[Shaped[Tensor, " ..."] | None, ...],
        **others: int,
    ) -> None:
        with torch.cuda.device_of(self.q):
            for case in self.cases:
                kernel[grid](
                    *self.inputs, *more, *self.sizes, APART=case, **self.constants, **others
                )


def padded(x: Float[Tensor, "b h i d"]) -> Float[Tensor, "b h d padded"]:
    """Width first, padded to whole blocks, so that no access is out of bounds."""
    return F.pad(x.mT, (0, -x.shape[2] % max(ROWS, COLUMNS))).contiguous()


def block(columns: int) -> int:
    """Columns of a block: a power of two, and at least the minimum of tl.dot."""
    return min(VALUES, max(16, triton.next_power_of_2(columns)))


def setup_context(
    ctx: Any,
    inputs: tuple[Any, ...],
    output: tuple[Float[Tensor, "b h i w"], Float[Tensor, "b h i"]],
) -> None:
    *tensors, ctx.rate, ctx.slope = inputs
    ctx.save_for_backward(*output, *tensors)


def backward(
    ctx: Any, gradient: Float[Tensor, "b h i w"], _: Float[Tensor, "b h i"]
) -> tuple[Float[Tensor, " ..."] | None, ...]:
    out, lse, *tensors = ctx.saved_tensors
    of_table = ctx.needs_input_grad[4]
    dq, dk, dv, dvalues, dtable = gradients(
        gradient, out, lse, of_table, *tensors, ctx.rate, ctx.slope
    )
    return dq, dk, dv, dvalues, dtable if of_table else None, *(None,) * 7


attention.register_autograd(backward, setup_context=setup_context)


@attention.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, values: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    wide = torch.promote_types(q.dtype, torch.float32)
    shape = q.shape[:3]
    return values.new_empty(*shape, values.shape[-1]), q.new_empty(shape, dtype=wide)


@gradients.register_fake
def _(gradient: Tensor, out: Tensor, lse: Tensor, of_table: bool, *args: Any) -> tuple[Tensor, ...]:
    *inputs, table = args[:5]
    dtable = table.new_empty(table.shape) if of_table else inputs[2].new_empty(0)
    return *(x.new_empty(x.shape) for x in inputs), dtable
