"""Recurrent models: directions, decoders, read-out."""

from ablate.config.conflicts.conflict import Conflict

RECURRENT: list[Conflict] = [
    Conflict(
        lambda c: c("model.bidirectional") and c("model.dim") % 2 != 0,
        "model.bidirectional=true gives each direction half of model.dim={model.dim}, which must be"
        " even",
    ),
    Conflict(
        lambda c: c("model.decoder") == "bahdanau" and c("model.dim") % 2 != 0,
        "model.decoder=bahdanau reads out the larger of each pair of model.dim={model.dim} numbers,"
        " which must be even",
    ),
    Conflict(
        lambda c: (
            c("model.cell")
            and c("model.residual")
            and c("model.depth") == 1
            and c.option("model") != "captioner"  # whose residuals are the encoder's
        ),
        "model.residual=true goes around the second layer and those above it, and has no effect"
        " with model.depth=1",
    ),
    Conflict(
        lambda c: c("model.input_feeding") and c("model.decoder") != "luong",
        "model.input_feeding=true belongs to model.decoder=luong; model.decoder={model.decoder}"
        " always feeds the context to the cell",
    ),
    Conflict(
        lambda c: (
            c("model.tie_embeddings")
            and c("model.decoder") == "bahdanau"
            and (c("model.embedding_dim") or c("model.dim")) != c.read_out
        ),
        "model.tie_embeddings=true needs embeddings as wide as what model.decoder=bahdanau reads"
        " out, half of model.dim={model.dim}; set model.embedding_dim={:read_out}",
    ),
    Conflict(
        lambda c: (
            c("model.tie_embeddings")
            and c.get("model.decoder", None) != "bahdanau"
            and (c("model.embedding_dim") or c("model.dim")) != c.read_out
        ),
        "model.tie_embeddings=true needs embeddings as wide as the states that are read out,"
        " model.dim={model.dim}; set model.embedding_dim={:read_out}",
    ),
]
