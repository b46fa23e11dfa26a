"""The fastest kernel that computes exactly the same thing."""

from typing import ClassVar

from ablate.kernel import Kernel
from ablate.kernel.chunked import Chunked
from ablate.kernel.reference import Reference
from ablate.kernel.sdpa import SDPA
from ablate.kernel.sparse import Sparse
from ablate.model.attention import Score
from ablate.pos_enc import PosEnc


class Auto(Kernel):
    """Along edges where there are some; SDPA where it is exact; the whole matrix where the scores
    are products; else chunks.

    Measured order: benchmarks/attention.py, docs/benchmarks.md.
    """

    name: ClassVar[str] = "auto"

    def resolve(
        self,
        score: Score,
        pos: PosEnc,
        *,
        factors: bool = False,
        softmax: bool = True,
        edges: bool = False,
    ) -> Kernel:
        if Sparse().refuses(score, pos, factors=factors, softmax=softmax, edges=edges) is None:
            return Sparse()
        if SDPA().refuses(score, pos, factors=factors, softmax=softmax) is None:
            return SDPA()
        if score.lowers:  # something needs the weights themselves, but no tensor has a width
            return Reference()
        return Chunked(chunk=None, compile="auto").resolve(score, pos)
