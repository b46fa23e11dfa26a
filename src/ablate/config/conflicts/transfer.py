"""Pretrained weights and frozen parameters."""

from ablate.config.facts import LABELLED
from ablate.config.rules import Conflict

TRANSFER: list[Conflict] = [
    Conflict(
        lambda c: (
            c.option("model") in ("gpt", "bert")
            and c("model.pretrained") is not None
            and not str(c("model.pretrained")).startswith("hf:")
        ),
        "model.pretrained={model.pretrained}: must be hf:NAME_OR_PATH, or null",
    ),
    Conflict(
        lambda c: (
            c("model.freeze") == "encoder"
            and c.option("model") == "gpt"
            and c.kind != LABELLED
            and c("model.tie_embeddings")
        ),
        "model.freeze=encoder leaves nothing to train on data={data}, which has no classes, since"
        " with model.tie_embeddings=true the output map is the table of tokens; set"
        " model.tie_embeddings=false",
    ),
    Conflict(
        lambda c: c("model.freeze") != "none" and c.option("model.norm_type") == "batch",
        "model.freeze={model.freeze} with model.norm_type=batch: its running averages would go on"
        " changing; use layer or rms",
    ),
    Conflict(
        lambda c: (
            c("init_from") is not None and c.get("model.pretrained", None) not in (None, False)
        ),
        "init_from={init_from} and model.pretrained={model.pretrained} both say where the weights"
        " come from; leave one out",
    ),
]
