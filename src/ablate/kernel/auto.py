"""Selects the fastest kernel that computes a layer exactly."""

from typing import ClassVar

from ablate.kernel import Kernel, Parts
from ablate.kernel.chunked import Chunked
from ablate.kernel.reference import Reference
from ablate.kernel.sdpa import SDPA
from ablate.kernel.triton import Triton, interpreted


class Auto(Kernel):
    """SDPA if it is exact; the reference for other dot-product scores; for sums over a width
    Triton's kernels if there is a GPU, but for small calls the reference; else chunks.

    Measured order: benchmarks/attention.py, docs/results/benchmarks.md.
    """

    name: ClassVar[str] = "auto"
    chooses = True

    def resolve(self, layer: Parts) -> Kernel:
        if SDPA().refuses(layer) is None:
            return SDPA()
        if layer.score.lowers:  # the weights are needed, but the scores need no tensor with a width
            return Reference()
        triton = Triton()
        if not (triton.refuses(layer) or triton.unavailable() or interpreted()):
            triton = triton.resolve(layer)
            triton.chosen = True
            return triton
        return Chunked(chunk=None, compile="auto").resolve(layer)
