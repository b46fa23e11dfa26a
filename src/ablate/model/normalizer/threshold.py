"""The base of sparsemax and entmax: weights max(z - tau, 0)^power, zero below the threshold.

Peters, Niculae and Martins 2019, "Sparse sequence-to-sequence models",
https://arxiv.org/abs/1905.05702: alpha-entmax with alpha = 1 + 1 / power and z = (alpha - 1) s.
"""

from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.autograd import Function

from ablate.model.normalizer import Normalizer


class Threshold(Normalizer):
    """A subclass computes the threshold. Weights in the type of the scores, computed in float32 or
    wider."""

    power: ClassVar[int]

    def tau(
        self, ordered: Float[Tensor, "*bhi j"], rank: Float[Tensor, " j"]
    ) -> tuple[Float[Tensor, "*bhi j"], Bool[Tensor, "*bhi j"]]:
        """The threshold if the `rank` highest scores were kept, and whether the last of them is.

        ordered: z in falling order; rank: 1, 2 ..
        """
        raise NotImplementedError

    def normalize(
        self, scores: Float[Tensor, "*bhi j"], seen: Int[Tensor, "*#bhi 1"] | int, *, training: bool
    ) -> Float[Tensor, "*bhi j"]:
        weights: Tensor = Thresholded.apply(scores, self)
        return weights


class Thresholded(Function):
    """Forward by sorting, backward in closed form (proposition 2 of the paper).

    With s = w^(2 - alpha) on the support and 0 elsewhere, the Jacobian is diag(s) - s s' / sum(s).
    """

    @staticmethod
    def forward(
        ctx: Any, scores: Float[Tensor, "*bhi j"], normalizer: Threshold
    ) -> Float[Tensor, "*bhi j"]:
        wide = scores if scores.dtype == torch.float64 else scores.float()
        # The highest is 0; nothing below -1 / (alpha - 1) is kept. Clamping below it keeps sums
        # over masked scores finite.
        z = ((wide - wide.amax(-1, keepdim=True)) / normalizer.power).clamp(min=-2.0)
        ordered = z.sort(-1, descending=True).values
        rank = torch.arange(1, z.shape[-1] + 1, device=z.device, dtype=z.dtype)
        thresholds, support = normalizer.tau(ordered, rank)
        last = support.sum(-1, keepdim=True) - 1
        weights = (z - thresholds.gather(-1, last)).clamp(min=0) ** normalizer.power
        ctx.save_for_backward(weights)
        ctx.power = normalizer.power
        # No .to() that does nothing: torch 2.11 compiles it to a wrong gradient.
        return weights if weights.dtype == scores.dtype else weights.to(scores.dtype)

    @staticmethod
    def backward(
        ctx: Any, gradient: Float[Tensor, "*bhi j"]
    ) -> tuple[Float[Tensor, "*bhi j"], None]:
        (weights,) = ctx.saved_tensors
        # w^(2 - alpha) = w^(1 - 1 / power)
        slope = torch.where(weights > 0, weights ** (1 - 1 / ctx.power), 0.0)
        wide = gradient.to(weights.dtype)
        mean = (wide * slope).sum(-1, keepdim=True) / slope.sum(-1, keepdim=True)
        return (slope * (wide - mean)).to(gradient.dtype), None
