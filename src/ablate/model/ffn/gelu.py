"""Gaussian error linear unit: Hendrycks and Gimpel 2016, https://arxiv.org/abs/1606.08415."""

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from ablate.model.ffn import FeedForward


class GELU(FeedForward):
    @staticmethod
    def activation(x: Float[Tensor, " *n"]) -> Float[Tensor, " *n"]:
        return F.gelu(x)
