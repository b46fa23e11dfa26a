"""The fastest kernel that computes exactly the same thing."""

from typing import ClassVar

from ablate.kernel import Kernel, Layer
from ablate.kernel.chunked import Chunked
from ablate.kernel.reference import Reference
from ablate.kernel.sdpa import SDPA
from ablate.kernel.sparse import Sparse


class Auto(Kernel):
    """Along edges where there are some; SDPA where it is exact; the whole matrix where the scores
    are products; else chunks.

    Measured order: benchmarks/attention.py, docs/benchmarks.md.
    """

    name: ClassVar[str] = "auto"

    def resolve(self, layer: Layer) -> Kernel:
        if Sparse().refuses(layer) is None:
            return Sparse()
        if SDPA().refuses(layer) is None:
            return SDPA()
        if layer.score.lowers:  # something needs the weights themselves, but no tensor has a width
            return Reference()
        return Chunked(chunk=None, compile="auto").resolve(layer)
