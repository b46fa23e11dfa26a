"""Squared rectified linear unit: So et al. 2021, "Primer", https://arxiv.org/abs/2109.08668."""

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from ablate.model.ffn import FeedForward


class ReLU2(FeedForward):
    @staticmethod
    def activation(x: Float[Tensor, " *n"]) -> Float[Tensor, " *n"]:
        return F.relu(x).square()
