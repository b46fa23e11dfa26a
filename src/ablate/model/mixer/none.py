"""The ablated mixer: every position is processed by itself."""

from ablate.config.conflicts import Conflict
from ablate.model.layers.layer import Layer, LayerSpec, LayerTraits


class NoMixer(Layer):
    """No layer: blocks are a feed-forward network, and cross-attention if there is a memory."""

    conflicts = (
        Conflict(
            lambda c: (
                (causal := c.trait("model", "causal")) is not None
                and c.attribute("model.mask", "looks_ahead") is causal
            ),
            "model.mask={model.mask} has no effect with model.mixer=none; leave it at the model's"
            " default",
            without_effect=True,
        ),
        Conflict(
            lambda c: c.option("model.ffn") == "none" and not c.trait("model", "attends"),
            "model.mixer=none with model.ffn=none disables every sublayer",
        ),
    )
    traits = LayerTraits(mixes=False)

    def __new__(cls, place: LayerSpec) -> None:  # type: ignore[misc]
        return None
