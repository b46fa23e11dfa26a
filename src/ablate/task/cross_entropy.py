"""The cross-entropy of logits over a vocabulary."""

from typing import Any

import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn


class CrossEntropy(nn.Module):
    """`F.cross_entropy` as a module, which compile=true compiles.

    torch by itself writes the logarithms of all probabilities and reads them again for the
    gradient; figures: docs/results/benchmarks.md.
    """

    def forward(
        self, logits: Float[Tensor, "n vocabulary"], targets: Int[Tensor, " n"], **how: Any
    ) -> Float[Tensor, ""]:
        return F.cross_entropy(logits, targets, **how)
