"""Additive attention fused by Triton on a GPU: memory linear in the length, as for dot products.

For scores that are sums over a width, such as Bahdanau's: see `Score.summed` and, for the method,
ablate.kernel.additive_triton_kernels. Times on a GPU: docs/results/benchmarks.md.
"""

from dataclasses import replace
from importlib.util import find_spec
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from ablate.config.conflicts import Conflict
from ablate.errors import UserError
from ablate.kernel import AttentionInputs, Kernel, interpreted
from ablate.kernel.chunked import Chunked
from ablate.kernel.reference import Reference


class Triton(Kernel):
    """Computes in float32 for any dtype of the queries; float64 needs Triton's interpreter.

    On a CPU, as for the figures after training on a GPU, kernel=chunked computes instead, unless
    the interpreter is on; so it does for attention within documents. If kernel=auto has `chosen`
    this kernel, kernel=chunked also computes float64, and the reference computes `SMALL` calls,
    such as the single query of a decoder's step: starting Triton's kernels takes longer
    (docs/results/benchmarks.md).
    """

    conflicts: ClassVar[tuple[Conflict, ...]] = (
        Conflict(
            lambda c: c("data.documents") != "ignore",
            "kernel=triton does not support data.documents={data.documents}; use kernel=auto",
        ),
    )
    name: ClassVar[str] = "triton"
    provides = frozenset({"sum", "distance_bias", "range", "dropout", "interpreter"})
    # Numbers in the tensor of queries x keys x width that the reference makes: 64 MB of float32.
    SMALL: ClassVar[int] = 2**24

    def __init__(self) -> None:
        self.chosen = False
        self.chunked: Kernel = Chunked(chunk=None, compile="auto")
        self.reference = Reference()
        self.ran: set[Kernel] = set()  # the kernels that computed the calls so far

    def resolve(self, needs: frozenset[str]) -> "Triton":
        super().resolve(needs)
        kernel = Triton()  # each layer records its own `ran`
        kernel.chunked = self.chunked.resolve(needs)
        return kernel

    def unavailable(self) -> str | None:
        if find_spec("triton") is None:
            return "the package triton is not installed"
        if not (interpreted() or torch.cuda.is_available()):
            return "it runs on a GPU, and torch sees none"
        return None

    def describe(self) -> str:
        name = f"{self.name} (interpreted)" if interpreted() else self.name
        ran = {name if kernel is self else kernel.describe() for kernel in self.ran}
        return ", ".join(sorted(ran)) or name

    def _for(self, attend: AttentionInputs) -> Kernel:
        """The kernel that computes a call."""
        if attend.documents is not None:
            return self.chunked
        if not interpreted():
            on_cpu, wide = attend.v.device.type == "cpu", attend.v.dtype == torch.float64
            if on_cpu or (wide and self.chosen):
                return self.chunked
        assert attend.prepared is not None
        small = attend.prepared.numel() * attend.queries <= self.SMALL
        return self.reference if self.chosen and small else self

    def __call__(self, attend: AttentionInputs) -> Float[Tensor, "b h {attend.queries} w"]:
        if attend.prepared is None:
            attend = replace(attend, prepared=attend.score.keys(attend.k))
        kernel = self._for(attend)
        if not torch.compiler.is_compiling():
            self.ran.add(kernel)
        return self._fused(attend) if kernel is self else kernel(attend)

    def _fused(self, attend: AttentionInputs) -> Float[Tensor, "b h {attend.queries} w"]:
        assert attend.prepared is not None
        if attend.v.dtype == torch.float64 and not interpreted():
            raise UserError(f"kernel={self.name} has no float64 on a GPU; use kernel=auto")
        from ablate.kernel.additive_triton import Where, sum_attention

        assert attend.first_key == 0
        q, k, v, slope = attend.score.summed(attend.q, attend.prepared)
        i, _ = attend.positions()
        ends = attend.mask.between(i, attend.keys)
        begin, end = (edge.clamp(0, attend.keys).int() for edge in ends)
        table = rows = None
        if "distance_bias" in attend.pos.needs:
            ahead = torch.arange(1 - attend.queries, attend.keys, device=i.device) - attend.start
            if (by_distance := attend.pos.by_distance(attend.q, ahead, attend.layer)) is not None:
                table, rows = by_distance[0], by_distance[1].int()
        where = Where(begin, end, attend.keep, rows)
        stream = attend.source.from_row if attend.dropout else None
        return sum_attention(
            q, k, v, attend.v, table, where, slope=slope, dropout=attend.dropout, stream=stream
        )
