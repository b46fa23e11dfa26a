"""Blocks of a Transformer: heads, norms, residuals, feed-forward, shared layers."""

from ablate.config.rules import Conflict

BLOCKS: list[Conflict] = [
    Conflict(
        lambda c: c("model.dim") % c("model.heads") != 0,
        "model.heads={model.heads} does not divide model.dim={model.dim}",
    ),
    Conflict(
        lambda c: c("model.drop_path") > 0 and not c("model.residual"),
        "model.drop_path={model.drop_path} drops whole sublayers and needs model.residual=true",
    ),
    Conflict(
        lambda c: c("model.norm") == "none" and c.option("model.norm_type") != "layer",
        "model.norm_type={model.norm_type} has no effect with model.norm=none",
    ),
    Conflict(
        lambda c: (
            c("model.norm") != "none"
            and c.option("model.norm_type") == "batch"
            and not c("model.bias")
        ),
        "model.norm_type=batch always has a bias; set model.bias=true or another norm_type",
    ),
    Conflict(
        lambda c: (
            c.option("model") == "transformer"
            and c("model.norm") != "none"
            and c.option("model.norm_type") == "batch"
        ),
        "model.norm_type=batch would take the padding of model=transformer's batches into its"
        " statistics; use model.norm_type=layer or rms",
    ),
    Conflict(
        lambda c: c.option("model.ffn") == "none" and c("model.ffn_dim") is not None,
        "model.ffn_dim={model.ffn_dim} has no effect with model.ffn=none",
    ),
    Conflict(
        lambda c: (
            c.option("model") == "bert"
            and c("model.embedding_scale") != 1
            and c("model.norm") == "post"
            and c.stated("pos_enc", "acts_in") != "input"
        ),
        "model.embedding_scale={model.embedding_scale} has no effect where model.norm=post"
        " normalises the embeddings and pos_enc={pos_enc} adds nothing to them first; set"
        " model.embedding_scale=1.0",
    ),
    Conflict(
        lambda c: c("model.share_layers") and c("model.depth") == 1,
        "model.share_layers=true has no effect with model.depth=1",
    ),
    Conflict(
        lambda c: (
            c("model.share_layers") and c("model.encoder.depth") == c("model.decoder.depth") == 1
        ),
        "model.share_layers=true has no effect with model.encoder.depth=1 and"
        " model.decoder.depth=1",
    ),
    Conflict(
        lambda c: (
            c("model.activation_checkpointing")
            and c("model.norm") != "none"
            and c.option("model.norm_type") == "batch"
        ),
        "model.activation_checkpointing=true computes blocks twice, and model.norm_type=batch would"
        " count every batch twice; use model.norm_type=layer or rms, or"
        " model.activation_checkpointing=false",
    ),
    Conflict(
        lambda c: c("model.activation_checkpointing") and c("model.freeze") == "encoder",
        "model.activation_checkpointing=true has no effect with model.freeze=encoder, whose blocks"
        " keep nothing for a gradient; set model.activation_checkpointing=false",
    ),
]
