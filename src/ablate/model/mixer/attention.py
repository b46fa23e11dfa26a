"""Attention: weights that depend on what is read (model.attention and the groups beside it)."""

from collections.abc import Callable

from torch import nn

from ablate.model.mixer import Mixer, Sizes


class Attention(Mixer):
    """As the score, the normalizer, the mask and the positions say."""

    def layer(self, attention: Callable[[], nn.Module], sizes: Sizes) -> nn.Module:
        return attention()
