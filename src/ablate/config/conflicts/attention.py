"""Scores: models that need one, their tables, windows."""

from ablate.config.rules import Conflict

ATTENTION: list[Conflict] = [
    Conflict(
        lambda c: (
            c.is_ours("model")
            and c.option("model.attention") == "none"
            and c.option("model") not in ("rnn_seq2seq", "rnn_forecaster")
        ),
        "model.attention=none leaves model={model} nothing to read; use model.attention=uniform, or"
        " model=rnn_seq2seq",
    ),
    Conflict(
        lambda c: not c("model.residual") and not c.states("model.cross_attention", "query"),
        "model.cross_attention={model.cross_attention} does not read the query, so that with"
        " model.residual=false nothing of the target would reach the output; set"
        " model.residual=true",
    ),
    Conflict(
        lambda c: (
            c.option("model") == "transformer"
            and c.get("model.cross_attention", None) is None
            and not c("model.residual")
            and not c.states("model.attention", "query")
        ),
        "model.attention={model.attention}, the score of cross-attention too, does not read the"
        " query, so that with model.residual=false nothing of the target would reach the output;"
        " set model.residual=true, or model.cross_attention=scaled_dot",
    ),
    Conflict(
        lambda c: (
            c.option("model.attention") == "none" and c.option("model.normalizer") != "softmax"
        ),
        "model.normalizer={model.normalizer} has no effect with model.attention=none",
    ),
    Conflict(
        lambda c: c.option("model.attention") == "none" and c.option("model.window") != "none",
        "model.window={model.window} has no effect with model.attention=none",
    ),
    Conflict(
        lambda c: (
            c.option("model.attention") == "location"
            and c("model.attention.max_length") is not None
            and c("model.attention.max_length") < c.positions
        ),
        "model.attention.max_length={model.attention.max_length} is shorter than the {:positions}"
        " positions of training; give that many or more, or null",
    ),
]
