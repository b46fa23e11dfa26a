"""RMS norm: the values of a position over the root of their mean square.

Zhang and Sennrich 2019, https://arxiv.org/abs/1910.07467.
"""

from torch import nn

from ablate.config.conflicts import Conflict


class RMSNorm(nn.RMSNorm):
    """torch's, which has no bias."""

    conflicts = (
        Conflict(
            lambda c: c("model.norm") == "none",
            "model.norm_type=rms has no effect with model.norm=none",
        ),
    )
    images = False

    def __init__(self, dim: int, *, bias: bool, eps: float) -> None:
        super().__init__(dim, eps=eps)
