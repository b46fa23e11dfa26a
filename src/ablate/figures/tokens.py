"""Attention maps of a model that reads one sequence: of tokens, or of a time series."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from ablate.figures.maps import Map
from ablate.figures.panels import Panel, draw_panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def token_drawer(
    example: dict[str, Any], maps: Sequence[Map], item: str
) -> Callable[[Map, Sequence[int]], Figure]:
    """Draws a layer: a panel for each head. item: name of a position, such as "token"."""
    labels = example.get("labels") or [str(n) for n in range(maps[0].weights.shape[-1])]
    normalized = all(
        torch.allclose(map_.weights.sum(-1), torch.tensor(1.0), atol=1e-3) for map_ in maps
    )
    sums = "each row sums to 1; " if normalized else ""  # not with model.normalizer=sigmoid

    def figure(m: Map, heads: Sequence[int]) -> Figure:
        panels = [
            Panel(f"head {head}", m.weights[head - 1], labels, labels, m.allowed) for head in heads
        ]
        title = f"Attention weights, layer {m.layer} of {m.layers}\n{sums}gray: masked"
        query, key = f"query (attending {item})", f"key (attended {item})"
        return draw_panels(panels, title, query=query, key=key)

    return figure
