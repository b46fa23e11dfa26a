"""Neighbours: a node of a graph sees those it has an edge from, itself among them.

Velickovic et al. 2018, "Graph attention networks", section 2.1, https://arxiv.org/abs/1710.10903,
calls it masked attention.
"""

from typing import ClassVar

from ablate.model.mask.none import NoMask


class Neighbours(NoMask):
    """Which nodes those are is no matter of positions: the kernel is given the edges."""

    edges: ClassVar[bool] = True
