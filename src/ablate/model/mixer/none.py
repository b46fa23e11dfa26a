"""The ablated mixer: every position is processed by itself."""

from ablate.model.layers.layer import Layer, Place


class NoMixer(Layer):
    """Nothing is made: blocks are a feed-forward, and cross-attention if there is a memory."""

    mixes = False

    def __new__(cls, place: Place) -> None:  # type: ignore[misc]
        return None
