"""Mixers: how a position of a block comes to know of the others. One class per file.

A mixer makes the first part of every block; its layers take `b i d`, as `keep`, `b i`, True = a
real token, and as `only` the one position that is asked for, b 1 d. Letters: b batch, i position,
d width, h heads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from ablate.model.mask import Mask


@dataclass(frozen=True)
class Sizes:
    """What a layer is made for: `length` positions in training, in the rows and columns of `grid`
    where there is one."""

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
        """The layer of one block; None: positions are not mixed. attention: makes the layer that
        the other groups of the model describe."""
        raise NotImplementedError
