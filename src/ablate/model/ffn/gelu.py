"""Gaussian error linear unit: Hendrycks and Gimpel 2016, https://arxiv.org/abs/1606.08415."""

import torch.nn.functional as F

from ablate.model.ffn import FeedForward


class GELU(FeedForward):
    activation = staticmethod(F.gelu)
