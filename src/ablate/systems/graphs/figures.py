"""Attention weights along the edges of a graph, drawn between its nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ablate.figures.maps import Map
from ablate.figures.panels import TITLE, color_bar, entitle, grid, scale
from ablate.systems.graphs.graph import Graphs

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import LineCollection
    from matplotlib.figure import Figure

MOST = 60  # nodes; of a larger graph those around one node are drawn
PANEL = 4.0  # inches


class Neighborhood:
    """The nodes that are drawn, and their positions: the whole graph, or the neighborhood of the
    validation node with the most edges."""

    def __init__(self, data: Graphs, edges: Tensor) -> None:
        import networkx

        graph = networkx.Graph(edges.T.tolist())
        graph.remove_edges_from(networkx.selfloop_edges(graph))
        self.nodes, self.around = sorted(graph), ""
        if len(graph) > MOST:
            center = max(data.graph.split["val"], key=graph.degree)
            near = networkx.single_source_shortest_path_length(graph, center)
            self.nodes, self.around = sorted(list(near)[:MOST]), f", around node {center}"
        shown = graph.subgraph(self.nodes)
        self.edges = shown.number_of_edges()
        layout = networkx.spring_layout(shown, seed=0)
        self.spots = torch.tensor([[*layout[node]] for node in self.nodes])
        self.class_names = data.class_names
        self.classes = torch.from_numpy(data.graph.classes[self.nodes])
        trains = torch.tensor(list(data.graph.split["train"]))
        self.known = torch.isin(torch.tensor(self.nodes), trains)

    def pairs(self, weights: Tensor) -> Tensor:
        """Weights .. i j of all nodes -> of the drawn ones, the larger of each pair in the upper
        triangle."""
        inner = weights[..., self.nodes, :][..., self.nodes]
        return torch.maximum(inner, inner.mT).triu(1)


def graph_drawer(
    data: Graphs, example: dict[str, Any], maps: Sequence[Map]
) -> Callable[[Map, Sequence[int]], Figure]:
    """Draws a layer: a panel for each head, with as many lines as there are edges between the drawn
    nodes, for the pairs with the largest weights; the larger weight of a pair sets the shade."""
    near = Neighborhood(data, example["edges"])
    pairs = {map_.layer: near.pairs(map_.weights) for map_ in maps}
    # One scale for all layers; any, if there are no edges.
    norm = scale(max(float(part.max()) for part in pairs.values()) or 1.0)

    def figure(map_: Map, heads: Sequence[int]) -> Figure:
        drawing, axes = grid(len(heads), width=PANEL, height=PANEL)
        for head, axis in zip(heads, axes, strict=True):
            lines = draw_lines(axis, near, pairs[map_.layer][head - 1], norm)
            draw_nodes(axis, near)
            axis.set_title(f"head {head}", fontsize=TITLE)
            axis.set(xticks=[], yticks=[])
        axes[0].legend(fontsize=6, loc="best")
        note = "square: labeled in training; attention to itself is not shown"
        entitle(
            drawing, f"Attention weights{near.around}, layer {map_.layer} of {map_.layers}\n{note}"
        )
        color_bar(drawing, lines, axes)
        return drawing

    return figure


def draw_lines(axis: Axes, near: Neighborhood, pairs: Tensor, norm: Any) -> LineCollection:
    """The strongest pairs, the darkest on top."""
    from matplotlib.collections import LineCollection

    strongest = pairs.flatten().topk(near.edges).indices.flip(0)
    rows, columns = strongest // len(pairs), strongest % len(pairs)
    ends = torch.stack([near.spots[rows], near.spots[columns]], dim=1)
    lines = LineCollection(list(ends.numpy()), cmap="Greys", norm=norm, linewidths=1.5)
    lines.set_array(pairs[rows, columns].numpy())
    axis.add_collection(lines)
    return lines


def draw_nodes(axis: Axes, near: Neighborhood) -> None:
    """A color for each class; squares are labeled in training."""
    for kind, name in enumerate(near.class_names):
        for marker, known in (("o", False), ("s", True)):
            these = near.spots[(near.classes == kind) & (near.known == known)]
            label = name if len(these) and not known else None
            across, up = these.T.numpy()
            axis.scatter(
                across, up, marker=marker, s=40, zorder=2, color=f"C{kind % 10}", label=label
            )
