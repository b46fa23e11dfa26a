"""Rows of the tables of tests for graphs; see tests/make_systems.py."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from make_systems import Tiny
from torch import Tensor

from ablate.systems.graphs.graph import symmetric

SIZES: dict[str, Any] = {
    "gat": {"features": 5, "classes": 3, "nodes": 9, "dim": 12, "heads": 3, "dropout": 0.0}
    | {"attention": "gat", "mask": "neighbors", "normalizer": "softmax"}
    | {"pos_enc": "none", "kernel": "auto"},
}
KERNEL_NEEDS = {"sparse": ["model=gat"]}
NODES: dict[str, list[Any]] = {"data.normalize": [True, False]}
AXES = {"model.out_heads": [1, 2], "model.shared": [True, False], **NODES}
MODELS = {"gat": Tiny("karate", ("model.dim=12", "model.heads=2"), NODES)}
FILES = {"karate": {}, "planetoid": {"root": "planetoid"}}
NO_AXIS = {"data.name": "graphs in files of one kind: test_graph.py"}
DEBUGGED = ["gat"]  # the fastest
ONE_BATCH = list(FILES)
UNKEPT = dict.fromkeys(FILES)  # read again
COMPILED = [("gat", "kernel=sparse")]
REFUSED = """
3 model=gat model.mask=causal model.attention=location model.normalizer=sigmoid kernel=sparse
3 model=gat kernel=triton trainer=gpu model.depth=1 model.attention=uniform model.shared=false
1 model=gat trainer=ddp trainer.accelerator=cpu trainer.devices=2
1 model.mask=neighbors
1 kernel=sparse
1 kernel=sparse model=rnn_seq2seq
"""
ALLOWED = """
model=gat model.mask=none kernel=triton trainer=gpu
model=gat model.attention=cosine model.shared=false
"""


def graph() -> tuple[Tensor, Tensor]:
    """Features, and the edges of a random graph in which the last node is alone."""
    from make_model import normal

    nodes = SIZES["gat"]["nodes"]
    drawn = torch.rand(nodes, nodes, generator=torch.Generator().manual_seed(3)) < 0.3
    drawn[-1] = drawn[:, -1] = False
    edges, _ = symmetric(drawn.nonzero().numpy(), nodes)
    return normal(nodes, SIZES["gat"]["features"], seed=4), edges


DRAWS = {
    "gat": ({"dropout": 0.5}, lambda: [x.float() if x.is_floating_point() else x for x in graph()])
}


def accepted() -> dict[str, dict[str, list[Any]]]:
    from make_model import kernels, scores

    return {
        "gat": {
            "pos_enc": ["none"],
            "kernel": [*kernels(), "sparse"],
            "model.attention": [name for name in scores() if name != "location"],
            "model.mask": ["neighbors", "none"],
            "model.depth": [2],
        }
    }


def write(folder: Path) -> None:
    rng = np.random.default_rng(0)
    for name in ("cora", "citeseer"):
        write_planetoid(folder / "planetoid", name, rng)


def write_planetoid(folder: Path, name: str, rng: np.random.Generator) -> None:
    """Twelve papers in a ring, as an npz."""
    folder.mkdir(exist_ok=True)
    rows, columns = np.nonzero(rng.random((12, 9)) < 0.4)
    np.savez(
        folder / f"{name}.npz",
        shape=[12, 9],
        feat_row=rows,
        feat_col=columns,
        feat_val=np.ones(len(rows), dtype=np.float32),
        label=rng.integers(0, 6, 12).astype(np.int8),
        edges=[[n, (n + 1) % 12] for n in range(12)],
        train=range(4),
        val=range(4, 8),
        test=range(8, 12),
    )
