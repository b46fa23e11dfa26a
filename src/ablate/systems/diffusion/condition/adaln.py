"""Adaptive layer norm (adaLN): a vector of time and caption scales and shifts every normed input.

Peebles and Xie 2023, section 3.2 and figure 5, https://arxiv.org/abs/2212.09748, after Perez et al.
2018, "FiLM: visual reasoning with a general conditioning layer", https://arxiv.org/abs/1709.07871.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

from jaxtyping import Bool, Float
from torch import Tensor

from ablate.model.attention import Score
from ablate.model.layers.modulation import Modulation
from ablate.model.layers.stack import Stack
from ablate.systems.diffusion.condition import Condition


class AdaLN(Condition):
    """The vector is the time's token plus the mean of the caption's. Without a norm before a
    sublayer (model.norm=post, none) its input is scaled and shifted as it is.
    """

    gate: ClassVar[bool] = False

    def stack(self, cross_attention: Callable[..., Score]) -> dict[str, Any]:
        std = 0.0 if self.starts_at_zero else self.std
        return {"extra": 0, "modulation": partial(Modulation, gate=self.gate, std=std)}

    def apply(
        self,
        stack: Stack,
        x: Float[Tensor, "b i d"],
        tokens: Float[Tensor, "b j d"],
        keep: Bool[Tensor, "b j"],
    ) -> Float[Tensor, "b i d"]:
        time, words, real = tokens[:, 0], tokens[:, 1:], keep[:, 1:, None]
        caption = (words * real).sum(1) / real.sum(1)
        return stack(x, condition=time + caption)
