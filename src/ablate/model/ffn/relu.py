"""Rectified linear unit, as in Vaswani et al. 2017, https://arxiv.org/abs/1706.03762."""

import torch.nn.functional as F

from ablate.model.ffn import FeedForward


class ReLU(FeedForward):
    activation = staticmethod(F.relu)
