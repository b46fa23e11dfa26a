"""The cross-entropy of logits over a vocabulary."""

from typing import Any

import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from ablate.data import IGNORED


class CrossEntropy(nn.Module):
    """`F.cross_entropy` as a module, which compile=true compiles.

    torch by itself writes the logarithms of all probabilities and reads them again for the
    gradient; figures: docs/results/benchmarks.md.
    """

    def forward(
        self, logits: Float[Tensor, "n vocabulary"], targets: Int[Tensor, " n"], **how: Any
    ) -> Float[Tensor, ""]:
        return F.cross_entropy(logits, targets, **how)


class TokenLoss(CrossEntropy):
    """Of tokens, with label smoothing.

    z_loss: coefficient of the mean of log(Z)², with Z the sum of the exponentials of a token's
    logits, which keeps them from drifting; null: none (PaLM: Chowdhery et al. 2022, section 5,
    https://arxiv.org/abs/2204.02311).
    """

    def __init__(self, label_smoothing: float, z_loss: float | None) -> None:
        super().__init__()
        self.label_smoothing, self.z_loss = label_smoothing, z_loss

    def loss(self, logits: Tensor, targets: Tensor, share: Tensor) -> Tensor:
        """share: divisor of the sum (`Accumulated.share`)."""
        total: Tensor = self(
            logits.flatten(0, 1),
            targets.flatten(),
            ignore_index=IGNORED,
            label_smoothing=self.label_smoothing,
            reduction="sum",
        )
        return total / share

    def terms(self, logits: Tensor, targets: Tensor, share: Tensor) -> dict[str, Tensor]:
        """The terms of the loss. share: as of `loss`."""
        terms = {"loss": self.loss(logits, targets, share)}
        if self.z_loss is not None:
            squares = logits[targets != IGNORED].float().logsumexp(-1).square().sum()
            terms["z_loss"] = self.z_loss * squares / share
        return terms
