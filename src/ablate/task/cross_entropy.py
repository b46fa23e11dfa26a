"""The cross-entropy of logits over a vocabulary."""

from typing import Any

import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn


class CrossEntropy(nn.Module):
    """`F.cross_entropy` as a module, which compile=true compiles.

    torch alone makes copies of the logits in float32, of their logarithms and of the gradients:
    compiled, a training step of GPT-2's size took 0.80 of the time (docs/benchmarks.md).
    """

    def forward(
        self, logits: Float[Tensor, "n vocabulary"], targets: Int[Tensor, " n"], **how: Any
    ) -> Float[Tensor, ""]:
        return F.cross_entropy(logits, targets, **how)
