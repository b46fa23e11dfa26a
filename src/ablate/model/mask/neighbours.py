"""Neighbours: a node of a graph attends to those it has an edge from, itself among them.

Velickovic et al. 2018, "Graph attention networks", section 2.1, https://arxiv.org/abs/1710.10903,
calls it masked attention.
"""

from typing import ClassVar

from ablate.model.mask.none import NoMask


class Neighbours(NoMask):
    """Allows every position, because the kernel gets the edges themselves."""

    edges: ClassVar[bool] = True
