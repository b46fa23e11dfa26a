"""A network gated by GELU: Shazeer 2020, https://arxiv.org/abs/2002.05202."""

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from ablate.model.ffn import FeedForward


class GEGLU(FeedForward):
    gated = True

    @staticmethod
    def activation(x: Float[Tensor, " *n"]) -> Float[Tensor, " *n"]:
        return F.gelu(x)
