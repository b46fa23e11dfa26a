"""Local-m: step t sees the source positions s with |s - t| <= D.

Monotonic local attention, Luong et al. 2015, section 3.2, https://arxiv.org/abs/1508.04025, for
languages that run in parallel; D is `size`. A step further than D behind the end of the source
sees nothing, and its context is zero.
"""

from ablate.model.mask import Mask
from ablate.model.mask.window import Window as Near
from ablate.model.window import Window, require_size


class LocalM(Window):
    """A mask, which every kernel can do."""

    def __init__(self, *, size: int, dim: int) -> None:
        super().__init__(dim=dim)
        require_size(size)
        self.size = size

    @property
    def mask(self) -> Mask:
        return Near(causal=False, size=self.size + 1)  # which counts oneself
