"""Neighbors: a node of a graph attends to those it has an edge from, itself among them.

Velickovic et al. 2018, "Graph attention networks", section 2.1, https://arxiv.org/abs/1710.10903,
calls it masked attention.
"""

from typing import ClassVar

from ablate.config.conflicts import Conflict
from ablate.model.mask.none import NoMask


class Neighbors(NoMask):
    """Allows every position, because the kernel gets the edges themselves."""

    needs = frozenset({"edges"})
    looks_ahead: ClassVar[bool | None] = None
    conflicts = (
        Conflict(
            lambda c: "a graph" not in c.attribute("model", "kinds"),
            "model.mask=neighbors needs a graph, and model={model} reads none; use model=gat, or"
            " another model.mask",
        ),
    )
