"""Selects the fastest kernel that computes a layer exactly."""

from typing import ClassVar

from ablate.kernel import Kernel, interpreted
from ablate.kernel.chunked import Chunked
from ablate.kernel.reference import Reference
from ablate.kernel.sdpa import SDPA
from ablate.kernel.triton import Triton


class Auto(Kernel):
    """SDPA if it is exact; the reference for other dot-product scores; for sums over a width
    Triton's kernels if there is a GPU, but for small calls the reference; else chunks.

    Measured order: benchmarks/attention.py, docs/results/benchmarks.md.
    """

    name: ClassVar[str] = "auto"

    def resolve(self, needs: frozenset[str]) -> Kernel:
        if needs <= SDPA.provides:
            return SDPA()
        if "dot_product" in needs:  # the scores need no tensor with a width
            return Reference()
        triton = Triton()
        if needs <= triton.provides and not (triton.unavailable() or interpreted()):
            triton = triton.resolve(needs)
            triton.chosen = True
            return triton
        return Chunked(chunk=None, compile="auto").resolve(needs)
