"""Graphs for node classification: some nodes have a known class, the others are to be predicted.

A batch is the whole graph,

    features  n f  features of each node
    edges     2 e  a node, and one that it attends to: both directions of every edge, and itself
    targets   n    the class of the nodes of the split, IGNORED for all others
"""

import logging
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from ablate.data import IGNORED, Data, digest
from ablate.data.interface import Sizes
from ablate.data.loader import Batch, Request

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Graph:
    """features: n f. edges: e 2, node numbers, in any order and direction. classes: n, -1 if
    unknown. split: the nodes of each split."""

    features: NDArray[np.float32]
    edges: NDArray[np.int64]
    classes: NDArray[np.int64]
    class_names: Sequence[str]
    split: Mapping[str, Sequence[int]]


class Nodes(Dataset[Batch]):
    """One example, the graph; targets only for the given nodes."""

    def __init__(
        self, features: Tensor, edges: Tensor, classes: Tensor, nodes: Sequence[int]
    ) -> None:
        chosen = torch.tensor(list(nodes))
        targets = torch.full_like(classes, IGNORED)
        targets[chosen] = classes[chosen]
        self.batch = {"features": features, "edges": edges, "targets": targets}

    def __len__(self) -> int:
        return 1

    def __getitem__(self, request: Request) -> Batch:
        return dict(self.batch)


@dataclass(frozen=True, kw_only=True)
class GraphSizes(Sizes):
    """features: numbers of a node."""

    features: int
    nodes: int


class Graphs(Data):
    """Base of the graphs: a subclass reads one."""

    kind: ClassVar[str] = "a graph"
    class_names: Sequence[str]
    sizes: GraphSizes
    sizes_class: ClassVar[type[Sizes]] = GraphSizes
    graph: Graph

    def __init__(self, *, seed: int) -> None:
        super().__init__(batch_size=1, seed=seed)

    @abstractmethod
    def read(self) -> Graph:
        """The graph as published; UserError for a user's mistake."""

    def load(self) -> None:
        self.graph = graph = self.read()
        count = len(graph.features)
        edges, messages = symmetric(graph.edges, count)
        for line in messages:
            log.warning("ablate: %s", line)
        features, classes = torch.from_numpy(graph.features), torch.from_numpy(graph.classes)
        self.splits = {
            name: Nodes(features, edges, classes, nodes) for name, nodes in graph.split.items()
        }
        self.class_names = graph.class_names
        self.sizes = GraphSizes(
            features=features.shape[1], classes=len(graph.class_names), nodes=count
        )

    def amount(self) -> str:
        return f"{len(self.graph.split['train']):,} training nodes of {self.sizes.nodes:,}"

    def fingerprint(self) -> str:
        graph = self.read()
        parts = (graph.features, graph.edges, graph.classes)
        content = [sha256(np.ascontiguousarray(part).tobytes()).hexdigest() for part in parts]
        return digest(content, {name: list(map(int, s)) for name, s in graph.split.items()})


def symmetric(edges: NDArray[np.int64], nodes: int) -> tuple[Tensor, list[str]]:
    """e 2 -> 2 e with both directions of every edge once and a self-loop at every node, sorted by
    the first; and warnings about self-loops, duplicates and isolated nodes."""
    loops = edges[:, 0] == edges[:, 1]
    between = edges[~loops]
    once = np.unique(np.sort(between, axis=1), axis=0)
    alone = nodes - len(np.unique(once))
    changes = {
        "edge(s) from a node to itself: every node sees itself once": int(loops.sum()),
        "edge(s) that repeat another: each counts once": (
            len(between) - len(np.unique(between, axis=0))
        ),
        "node(s) without neighbors, which see only themselves": alone,
    }
    itself = np.arange(nodes).repeat(2).reshape(-1, 2)
    full = np.concatenate([once, once[:, ::-1], itself])
    full = full[np.lexsort((full[:, 1], full[:, 0]))]
    messages = [f"the graph has {count} {what}" for what, count in changes.items() if count]
    return torch.from_numpy(full.T.copy()), messages
