"""Token mixers: how the positions in a block exchange information. One class per file.

A mixer makes the first sublayer of every block; its layers take `b i d`, the padding mask `keep`,
`b i`, True = a real token, and `position`, the single position to compute, b 1 d. Letters: b batch,
i position, d width, h heads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from ablate.model.mask import Mask


@dataclass(frozen=True)
class Sizes:
    """The sizes of a layer: `length` positions in training, on an image in the rows and columns of
    `grid`."""

    dim: int
    heads: int
    length: int
    mask: Mask
    grid: tuple[int, int] | None
    bias: bool
    std: float
    out_std: float


class Mixer:
    def layer(self, attention: Callable[[], nn.Module], sizes: Sizes) -> nn.Module | None:
        """The mixing layer of one block; None: no mixing. attention: makes the attention layer that
        the model's other config groups describe."""
        raise NotImplementedError
