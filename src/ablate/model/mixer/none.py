"""The ablated mixer: every position is processed by itself."""

from collections.abc import Callable

from torch import nn

from ablate.model.mixer import Mixer, Sizes


class NoMixer(Mixer):
    """Blocks are a feed-forward, and cross-attention if there is a memory."""

    def layer(self, attention: Callable[[], nn.Module], sizes: Sizes) -> None:
        return None
