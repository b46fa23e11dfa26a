"""Neighbors: a node of a graph attends to those it has an edge from, itself among them.

Velickovic et al. 2018, "Graph attention networks", section 2.1, https://arxiv.org/abs/1710.10903,
calls it masked attention.
"""

from typing import ClassVar

from ablate.config.conflicts import Conflict
from ablate.model.mask.none import NoMask


class Neighbors(NoMask):
    """Allows every position, because the kernel gets the edges themselves."""

    edges: ClassVar[bool] = True
    looks_ahead: ClassVar[bool | None] = None
    conflicts = (
        Conflict(
            lambda c: "a graph" not in c.attribute("model", "kinds"),
            "model.mask=neighbors needs a graph, and model={model} reads none; use model=gat, or"
            " another model.mask",
        ),
        Conflict(
            lambda c: c.declares("kernel", "by_ranges"),
            "kernel={kernel} lets a query see a range of keys, and model.mask=neighbors follows"
            " edges; use kernel=auto, or model.mask=none",
        ),
    )
