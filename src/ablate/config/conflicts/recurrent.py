"""Recurrent models: directions, decoders, read-out."""

from ablate.config.rules import Conflict

# What the check says before a run, and the constructors to whoever calls them.
DIRECTIONS = (
    "model.bidirectional=true gives each direction half of model.dim={dim}, which must be even"
)
MAXOUT = (
    "model.decoder=bahdanau reads out the larger of each pair of model.dim={dim} numbers, which"
    " must be even"
)
FED = (
    "model.input_feeding=true belongs to model.decoder=luong; model.decoder={decoder} always feeds"
    " the context to the cell"
)
TIED = (
    "model.tie_embeddings=true needs embeddings as wide as {what}; set model.embedding_dim={width}"
)

RECURRENT: list[Conflict] = [
    Conflict(
        lambda c: c("model.bidirectional") and c("model.dim") % 2 != 0,
        DIRECTIONS.format(dim="{model.dim}"),
    ),
    Conflict(
        lambda c: c.option("model.decoder") == "bahdanau" and c("model.dim") % 2 != 0,
        MAXOUT.format(dim="{model.dim}"),
    ),
    Conflict(
        lambda c: (
            c.has("model.cell")
            and c("model.residual")
            and c("model.depth") == 1
            and c.option("model") != "captioner"  # whose residuals are the encoder's
        ),
        "model.residual=true goes around the second layer and those above it, and has no effect"
        " with model.depth=1",
    ),
    Conflict(
        lambda c: c("model.input_feeding") and c.option("model.decoder") == "bahdanau",
        FED.format(decoder="{model.decoder}"),
    ),
    *(
        Conflict(
            lambda c, halved=halved: (  # type: ignore[misc]
                c("model.tie_embeddings")
                and (c("model.embedding_dim") or c("model.dim")) != c.read_out
                and halved == (c.read_out != c("model.dim"))
            ),
            TIED.format(what=what, width="{:read_out}"),
        )
        for halved, what in (
            (True, "what model.decoder=bahdanau reads out, half of model.dim={model.dim}"),
            (False, "the states that are read out, model.dim={model.dim}"),
        )
    ),
]
