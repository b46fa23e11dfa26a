"""Positional encodings: widths they need, scores they act on, models that can use them."""

from ablate.config.rules import Conflict

POS_ENC: list[Conflict] = [
    Conflict(
        lambda c: (
            c.option("pos_enc") == "rotary"
            and c("model.dim") % c("model.heads") == 0
            and c("model.dim") // c("model.heads") % 2 == 1
        ),
        "pos_enc=rotary turns pairs of numbers and needs an even head width; here it is"
        " model.dim={model.dim} / model.heads={model.heads}",
    ),
    Conflict(
        lambda c: c.option("pos_enc") == "learned_2d" and c("model.dim") % 2 != 0,
        "pos_enc=learned_2d needs an even model.dim, not {model.dim}",
    ),
    Conflict(
        lambda c: c.option("pos_enc") == "sinusoidal_2d" and c("model.dim") % 4 != 0,
        "pos_enc=sinusoidal_2d needs a model.dim that is a multiple of 4, not {model.dim}",
    ),
    Conflict(
        lambda c: (
            c.states("pos_enc", "compares")
            and not (c.states("model.attention", "query") and c.states("model.attention", "key"))
        ),
        "pos_enc={pos_enc} acts where queries and keys are compared, and"
        " model.attention={model.attention} does not compare them",
    ),
    Conflict(
        lambda c: (
            c.option("pos_enc") == "relative"
            and c("pos_enc.keys")
            and not c.states("model.attention", "query")
        ),
        "pos_enc=relative with pos_enc.keys=true needs a score that reads the query, and"
        " model.attention={model.attention} does not; set pos_enc.keys=false",
    ),
    Conflict(
        lambda c: c.option("pos_enc") == "relative_2d" and not c.states("model.attention", "query"),
        "pos_enc=relative_2d needs a score that reads the query, and"
        " model.attention={model.attention} does not",
    ),
    Conflict(
        lambda c: (
            c.option("pos_enc") == "relative_2d"
            and c("model.dim") % c("model.heads") == 0
            and c("model.dim") // c("model.heads") % 2 == 1
        ),
        "pos_enc=relative_2d gives half of a head to the row and half to the column and needs an"
        " even head width; here it is model.dim={model.dim} / model.heads={model.heads}",
    ),
    Conflict(
        lambda c: (
            c.option("pos_enc").endswith("_2d")
            and c.option("model") in ("gpt", "bert", "transformer", "transformer_forecaster")
        ),
        "pos_enc={pos_enc} needs images, and model={model} reads a sequence; take the same"
        " without _2d",
    ),
    Conflict(
        lambda c: (
            c.option("model") in ("rnn_lm", "rnn_seq2seq", "rnn_forecaster")
            and c.option("pos_enc") != "none"
        ),
        "pos_enc={pos_enc} has no effect on model={model}, which reads in order; use pos_enc=none",
    ),
    Conflict(
        lambda c: c.option("model") == "resnet" and c.option("pos_enc") != "none",
        "pos_enc={pos_enc} has no effect on model=resnet, whose convolutions know where they are;"
        " use pos_enc=none",
    ),
    Conflict(
        lambda c: (
            c.option("model") == "captioner" and c.stated("pos_enc", "acts_in") == "attention"
        ),
        "pos_enc={pos_enc} is relative: query and key must be of one sequence, and model=captioner"
        " attends from words to image patches; use pos_enc=none, learned, sinusoidal,"
        " learned_from_sinusoidal, learned_2d or sinusoidal_2d",
    ),
    Conflict(
        lambda c: c.option("model") == "timm" and c.option("pos_enc") != "none",
        "pos_enc={pos_enc} has no effect on model=timm, which has its own; use pos_enc=none",
    ),
]
