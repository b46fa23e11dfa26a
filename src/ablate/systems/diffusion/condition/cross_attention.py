"""Cross-attention: after self-attention each block attends to the tokens of time and caption.

Peebles and Xie 2023, section 3.2 and figure 5, https://arxiv.org/abs/2212.09748, after Rombach et
al. 2022, "High-resolution image synthesis with latent diffusion models" (Stable Diffusion), section
3.3, https://arxiv.org/abs/2112.10752, who do so only with the caption.
"""

from collections.abc import Callable
from typing import Any

from jaxtyping import Bool, Float
from torch import Tensor

from ablate.model.attention import Score
from ablate.model.layers.stack import Stack
from ablate.systems.diffusion.condition import Condition


class CrossAttention(Condition):
    """The tokens are the memory of the blocks' cross-attention."""

    crosses = True

    def stack(self, cross_attention: Callable[..., Score]) -> dict[str, Any]:
        return {"extra": 0, "cross_attention": cross_attention, "memory_length": self.tokens}

    def apply(
        self,
        stack: Stack,
        x: Float[Tensor, "b i d"],
        tokens: Float[Tensor, "b j d"],
        keep: Bool[Tensor, "b j"],
    ) -> Float[Tensor, "b i d"]:
        return stack(x, memory=stack.remember(tokens, keep))
