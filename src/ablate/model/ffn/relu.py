"""Rectified linear unit, as in Vaswani et al. 2017, https://arxiv.org/abs/1706.03762."""

import torch.nn.functional as F
from torch import Tensor

from ablate.model.ffn import FeedForward


class ReLU(FeedForward):
    @staticmethod
    def activation(x: Tensor) -> Tensor:
        return F.relu(x)
