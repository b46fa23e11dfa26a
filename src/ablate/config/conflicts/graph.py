"""Graphs: parts that need an order, which nodes do not have, and parts that need edges."""

from ablate.config.rules import Conflict

GRAPH: list[Conflict] = [
    Conflict(
        lambda c: (
            c.option("model") == "gat" and c.option("model.mask") in ("causal", "prefix", "window")
        ),
        "model.mask={model.mask} goes by order, and the nodes of a graph have none; use"
        " model.mask=neighbours or none",
    ),
    Conflict(
        lambda c: (
            c.is_ours("model")
            and c.option("model") != "gat"
            and c.option("model.mask") == "neighbours"
        ),
        "model.mask=neighbours needs a graph, and model={model} reads none; use model=gat, or"
        " another model.mask",
    ),
    Conflict(
        lambda c: c.option("model") == "gat" and c.option("pos_enc") != "none",
        "pos_enc={pos_enc} goes by order, and the nodes of a graph have none; use pos_enc=none",
    ),
    Conflict(
        lambda c: c.option("model") == "gat" and c.option("model.attention") == "location",
        "model.attention=location goes by order, and the nodes of a graph have none; use another"
        " score, such as model.attention=gat",
    ),
    Conflict(
        lambda c: (
            c.option("kernel") == "sparse"
            and c.is_ours("model")
            and not (c.option("model") == "gat" and c.option("model.mask") == "neighbours")
        ),
        "kernel=sparse works along the edges of a graph alone, which only model=gat with"
        " model.mask=neighbours does; use kernel=auto",
    ),
    Conflict(
        lambda c: c.option("kernel") == "sparse" and not c.states("model.normalizer", "fused"),
        "kernel=sparse computes softmax alone, and model.normalizer={model.normalizer} is another;"
        " use kernel=auto",
    ),
    Conflict(
        lambda c: c.option("model") == "gat" and c("model.depth") == 1,
        "model.depth=1 leaves model.dim and model.heads nothing to shape; model=gat has at least 2"
        " layers",
    ),
    Conflict(
        lambda c: (
            c.option("model") == "gat"
            and not c("model.shared")
            and c.option("model.attention") == "uniform"
        ),
        "model.shared=false has no effect with model.attention=uniform, which compares nothing",
    ),
    Conflict(
        lambda c: c.option("model") == "gat" and c.several_processes,
        "data={data} is one graph, which one process trains; use trainer=cpu or trainer=gpu with"
        " trainer.devices=1",
    ),
]
