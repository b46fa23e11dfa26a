"""In-context: the tokens of time and caption precede those of the image in one sequence.

Peebles and Xie 2023, section 3.2 and figure 5, https://arxiv.org/abs/2212.09748.
"""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ablate.model.attention import Score
from ablate.model.layers.stack import Stack
from ablate.systems.diffusion.condition import Condition


class InContext(Condition):
    """Blocks as they are. The leading tokens have no place in the image (PosEnc's `extra`)."""

    def stack(self, cross_attention: Callable[..., Score]) -> dict[str, Any]:
        return {"extra": self.tokens}

    def apply(
        self,
        stack: Stack,
        x: Float[Tensor, "b i d"],
        tokens: Float[Tensor, "b j d"],
        keep: Bool[Tensor, "b j"],
    ) -> Float[Tensor, "b i d"]:
        both = torch.cat([tokens, x], dim=1)
        patches = keep.new_ones(x.shape[:2])
        return stack(both, keep=torch.cat([keep, patches], dim=1))[:, self.tokens :]
