"""A network gated by SiLU (swish): Shazeer 2020, https://arxiv.org/abs/2002.05202."""

import torch.nn.functional as F
from torch import Tensor

from ablate.model.ffn import FeedForward


class SwiGLU(FeedForward):
    gated = True

    @staticmethod
    def activation(x: Tensor) -> Tensor:
        return F.silu(x)
