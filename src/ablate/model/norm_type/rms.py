"""RMS norm: the values of a position over the root of their mean square.

Zhang and Sennrich 2019, https://arxiv.org/abs/1910.07467.
"""

from torch import nn

from ablate.model.norm_type import UNUSED


class RMSNorm(nn.RMSNorm):
    """torch's, which has no bias."""

    images = False
    conflicts = (UNUSED,)

    def __init__(self, dim: int, *, bias: bool, eps: float) -> None:
        super().__init__(dim, eps=eps)
