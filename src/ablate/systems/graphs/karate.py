"""Zachary's karate club: 34 members, 78 friendships, and the club that each joined when it split.

Zachary 1977, "An information flow model for conflict and fission in small groups", Journal of
Anthropological Research 33, https://doi.org/10.1086/jar.33.4.3629752, as networkx ships it. The two
leaders are labeled, as in Kipf and Welling 2017, https://arxiv.org/abs/1609.02907, appendix A; for
the others the leader they followed is predicted. The features of a member are its one-hot number.
"""

import numpy as np

from ablate.data.split import position
from ablate.systems.graphs.graph import Graph, Graphs

LEADERS = (0, 33)  # Mr. Hi, and the officer


class Karate(Graphs):
    """The leaders train; of the others the half with the lower hashes validates, the rest tests."""

    def read(self) -> Graph:
        from networkx import karate_club_graph

        club = karate_club_graph()
        followed = [club.nodes[member]["club"] for member in club]
        names = [followed[leader] for leader in LEADERS]
        others = sorted(
            (m for m in club if m not in LEADERS), key=lambda m: position(str(m).encode())
        )
        half = len(others) // 2
        return Graph(
            features=np.eye(len(club), dtype=np.float32),
            edges=np.array(list(club.edges), dtype=np.int64),
            classes=np.array([names.index(name) for name in followed]),
            class_names=names,
            split={"train": LEADERS, "val": sorted(others[:half]), "test": sorted(others[half:])},
        )
