"""Additive scores fused by Triton on a GPU: memory grows with the length alone, as for products.

For scores that are sums over a width, such as Bahdanau's: see `Score.summed` and, for how it is
done, ablate.model.sum_kernels. Nobody has measured its speed yet: docs/benchmarks.md.
"""

import os
from importlib.util import find_spec
from typing import ClassVar

import torch
from torch import Tensor

from ablate.errors import UserError
from ablate.kernel import Attend, Kernel, Layer
from ablate.kernel.chunked import Chunked
from ablate.pos_enc import PosEnc


class Triton(Kernel):
    """Computes in float32, whatever the type of the queries.

    What a trained model is asked on the CPU, as for the figures after training on a GPU, is
    computed there by kernel=chunked, unless Triton's interpreter is on.
    """

    name: ClassVar[str] = "triton"

    def refuses(self, layer: Layer) -> str | None:
        pos = type(layer.pos)
        if not layer.score.sums:
            return f"the score {type(layer.score).__name__} is no sum over a width"
        if not layer.softmax:
            return "the weights are no softmax, and it computes no others"
        if layer.factors:
            return "the weights are multiplied by factors, and it never shows them"
        if layer.edges:
            return "queries see along the edges of a graph, and it goes by ranges of keys"
        if not layer.ranges:
            return "the mask lets queries see more than one range of keys"
        if layer.pos.value_term:
            return f"{pos.__name__} positions add to the values, which needs the weights"
        if pos.bias is not PosEnc.bias and not pos.distances:
            return f"the bias of {pos.__name__} positions does not go by the distance j - i"
        return None

    def unavailable(self) -> str | None:
        if find_spec("triton") is None:
            return "the package triton is not installed"
        if not (interpreted() or torch.cuda.is_available()):
            return "it runs on a GPU, and torch sees none"
        return None

    def __call__(self, attend: Attend) -> Tensor:
        if attend.v.device.type == "cpu" and not interpreted():
            return Chunked(chunk=None, compile="auto")(attend)
        from ablate.model.sum_attention import Where, sum_attention

        assert attend.first_key == 0
        if attend.v.dtype == torch.float64 and not interpreted():
            raise UserError(f"kernel={self.name} has no float64 on a GPU; use kernel=auto")
        prepared = attend.score.keys(attend.k) if attend.prepared is None else attend.prepared
        q, k, v, slope = attend.score.summed(attend.q, prepared)
        i, _ = attend.positions()
        ends = attend.mask.between(i, attend.keys)
        begin, end = (edge.clamp(0, attend.keys).int() for edge in ends)
        table = rows = None
        if attend.pos.distances:
            ahead = torch.arange(1 - attend.queries, attend.keys, device=i.device) - attend.start
            if (found := attend.pos.by_distance(attend.q, ahead, attend.layer)) is not None:
                table, rows = found[0], found[1].int()
        where = Where(begin, end, attend.keep, rows)
        return sum_attention(q, k, v, attend.v, table, where, slope=slope, dropout=attend.dropout)


def interpreted() -> bool:
    """Whether Triton's interpreter is on, which runs on a CPU: slow, and meant for tests."""
    return os.environ.get("TRITON_INTERPRET") == "1"
