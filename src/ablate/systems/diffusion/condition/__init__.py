"""How a stack of blocks learns of a condition: the four ways of DiT (Peebles and Xie 2023, section
3.2 and figure 5, https://arxiv.org/abs/2212.09748). One class per file; this is their base.

The condition is a sequence of tokens, b j d: that of the time first, then those of a caption.
"""

from collections.abc import Callable
from typing import Any, ClassVar

from jaxtyping import Bool, Float
from torch import Tensor

from ablate.model.attention import Score
from ablate.model.layers.stack import Stack


class Condition:
    """tokens: in the sequence, padding counted. std: standard deviation of initial weights."""

    # Whether the blocks have cross-attention.
    crosses: ClassVar[bool] = False
    # Whether sublayers add nothing at the start.
    starts_at_zero: ClassVar[bool] = False

    def __init__(self, *, tokens: int, std: float) -> None:
        self.tokens, self.std = tokens, std

    def stack(self, cross_attention: Callable[..., Score]) -> dict[str, Any]:
        """The keys of Stack that it needs, `extra` among them. cross_attention: makes the score of
        cross-attention, if the blocks have it."""
        raise NotImplementedError

    def apply(
        self,
        stack: Stack,
        x: Float[Tensor, "b i d"],
        tokens: Float[Tensor, "b j d"],
        keep: Bool[Tensor, "b j"],
    ) -> Float[Tensor, "b i d"]:
        """The stack's output for patches x. keep: True = no padding."""
        raise NotImplementedError
