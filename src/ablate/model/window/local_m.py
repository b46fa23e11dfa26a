"""Local-m: step t attends to the source positions s with |s - t| <= D.

Monotonic local attention, Luong et al. 2015, section 3.2, https://arxiv.org/abs/1508.04025, for
roughly monotonic alignments; D is `size`. A step further than D behind the end of the source has an
empty window, and its context is zero.
"""

from ablate.config.rules import Count
from ablate.model.mask import Mask
from ablate.model.mask.window import Window as Near
from ablate.model.window import Window


class LocalM(Window):
    """The window as a mask, which every kernel supports."""

    def __init__(self, *, size: Count, dim: int) -> None:
        super().__init__(dim=dim)
        self.size = size

    @property
    def mask(self) -> Mask:
        return Near(causal=False, size=self.size + 1)  # its size counts the center
