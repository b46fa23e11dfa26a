"""The fastest kernel that computes exactly the same thing."""

from typing import ClassVar

from ablate.kernel import Kernel
from ablate.kernel.chunked import Chunked
from ablate.kernel.reference import Reference
from ablate.kernel.sdpa import SDPA
from ablate.model.attention import Score
from ablate.pos_enc import PosEnc


class Auto(Kernel):
    """SDPA where it is exact; the whole matrix where the scores are products; else chunks.

    Measured order: benchmarks/attention.py, docs/benchmarks.md.
    """

    name: ClassVar[str] = "auto"

    def resolve(self, score: Score, pos: PosEnc, *, factors: bool = False) -> Kernel:
        if SDPA().refuses(score, pos, factors=factors) is None:
            return SDPA()
        if score.lowers:  # something needs the weights themselves, but no tensor has a width
            return Reference()
        return Chunked(chunk=None, compile="auto").resolve(score, pos)
