"""Rectified linear unit, as in Vaswani et al. 2017, https://arxiv.org/abs/1706.03762."""

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from ablate.model.ffn import FeedForward


class ReLU(FeedForward):
    @staticmethod
    def activation(x: Float[Tensor, " *n"]) -> Float[Tensor, " *n"]:
        return F.relu(x)
