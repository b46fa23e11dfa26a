"""Token mixers: how the positions in a block exchange information. One class per file.

A mixer is a Layer (ablate.model.layers.layer) that is built from its `LayerSpec` in the model and
the keys of its YAML. Letters: b batch, i position, d width, h heads.
"""

from collections.abc import Callable

from ablate.model.layers.layer import Layer

MakeMixer = Callable[..., Layer | None]
