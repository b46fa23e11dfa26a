"""Embeddings: which of them an output map can be."""

from ablate.config.facts import LABELLED
from ablate.config.rules import Conflict

EMBEDDING: list[Conflict] = [
    Conflict(
        lambda c: (
            c.option("model.embedding") == "onehot"
            and c("model.tie_embeddings")
            and c.kind != LABELLED
        ),
        "model.tie_embeddings=true reads out by the learned table of the embeddings, and"
        " model.embedding=onehot has none; set model.tie_embeddings=false",
    ),
    Conflict(
        lambda c: c("model.embedding.freeze") and c("model.tie_embeddings") and c.kind != LABELLED,
        "model.embedding.freeze=true would freeze the output map, too, where"
        " model.tie_embeddings=true; set model.tie_embeddings=false",
    ),
    Conflict(
        lambda c: c.option("model.embedding") == "onehot" and c("model.share_embeddings"),
        "model.share_embeddings=true gives both sides one learned table, and"
        " model.embedding=onehot has none; set model.share_embeddings=false",
    ),
]
