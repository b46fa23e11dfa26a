"""Attention: weights that depend on the input (model.attention and the groups beside it)."""

from collections.abc import Callable

from torch import nn

from ablate.model.mixer import Mixer, Sizes


class Attention(Mixer):
    """The attention layer of the configured score, normalizer, mask and position encoding."""

    def layer(self, attention: Callable[[], nn.Module], sizes: Sizes) -> nn.Module:
        return attention()
