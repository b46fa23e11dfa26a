"""Attention along the edges of a graph, drawn between its nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ablate.data.graph import Graphs
from ablate.figures.maps import Map
from ablate.figures.panels import TITLE, colour_bar, entitle, grid, scale
from ablate.task import Task

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST = 60  # nodes; of a larger graph those around one node are drawn
PANEL = 4.0  # inches


def graph_drawer(
    task: Task, example: dict[str, Any], maps: Sequence[Map]
) -> Callable[[Map, Sequence[int]], Figure]:
    """Draws a layer: a panel for each head, with as many lines as the graph has edges there, for
    the pairs of nodes with the largest weights; a line is as dark as the larger of its two."""
    import networkx
    from matplotlib.collections import LineCollection

    data = task.data
    assert isinstance(data, Graphs)
    graph = networkx.Graph(example["edges"].T.tolist())
    graph.remove_edges_from(networkx.selfloop_edges(graph))
    first = max(data.graph.split["val"], key=graph.degree)
    near = list(networkx.single_source_shortest_path_length(graph, first))
    chosen = sorted(graph if len(graph) <= MOST else near[:MOST])
    shown = graph.subgraph(chosen)
    places = networkx.spring_layout(shown, seed=0)
    spots = torch.tensor([[*places[node]] for node in chosen])
    classes = data.graph.classes[chosen]
    trains = set(data.graph.split["train"])
    within = torch.tensor(chosen)
    weights = {one.layer: one.weights[:, within][:, :, within] for one in maps}
    top = max(float(_pairs(part).max()) for part in weights.values()) or 1.0  # of no edges
    where = "" if len(graph) <= MOST else f", around node {first}"

    def figure(one: Map, heads: Sequence[int]) -> Figure:
        drawing, axes = grid(len(heads), width=PANEL, height=PANEL)
        norm = scale(top)
        for head, axis in zip(heads, axes, strict=True):
            pairs = _pairs(weights[one.layer][head - 1])
            strongest = pairs.flatten().topk(shown.number_of_edges()).indices
            rows, columns = strongest // len(chosen), strongest % len(chosen)
            drawn, order = pairs[rows, columns].sort()  # the darkest lie on top
            ends = torch.stack([spots[rows[order]], spots[columns[order]]], dim=1)
            lines = LineCollection(list(ends.numpy()), cmap="Greys", norm=norm, linewidths=1.5)
            lines.set_array(drawn.numpy())
            axis.add_collection(lines)
            for kind, name in enumerate(data.class_names):
                for marker, known in (("s", True), ("o", False)):
                    these = [
                        place
                        for place, node in enumerate(chosen)
                        if classes[place] == kind and (node in trains) == known
                    ]
                    across, up = spots[these].T.numpy()
                    axis.scatter(
                        across, up, marker=marker, s=40, zorder=2,
                        color=f"C{kind % 10}", label=None if known or not these else name,
                    )  # fmt: skip
            axis.set_title(f"head {head}", fontsize=TITLE)
            axis.set(xticks=[], yticks=[])
        axes[0].legend(fontsize=6, loc="best")
        said = "square: its class is known in training; what a node gives itself is not drawn"
        entitle(drawing, f"Attention weights{where}, layer {one.layer} of {one.layers}\n{said}")
        colour_bar(drawing, lines, axes)
        return drawing

    return figure


def _pairs(weights: Tensor) -> Tensor:
    """.. i j -> the larger weight of each pair, above the diagonal; 0 elsewhere."""
    return torch.maximum(weights, weights.mT).triu(1)
