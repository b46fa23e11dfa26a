"""The attention weights of a model for one example."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

ALIGNMENT = "alignment"  # the name of the single map of an RNN


@dataclass(frozen=True)
class Map:
    """The attention weights of the heads of a layer.

    kind: such as "cross"; `Model.map_kind`. layer: its number among `layers` of that kind, from 1.
    weights: h i j. allowed: i j, True if the mask lets query i attend to key j.
    """

    kind: str
    layer: int
    layers: int
    weights: Tensor
    allowed: Tensor

    @property
    def name(self) -> str:
        """The name of its PNG."""
        if self.kind == "cross" and self.layers == len(self.weights) == 1:
            return ALIGNMENT
        return f"{self.kind}_layer_{self.layer:02}"
