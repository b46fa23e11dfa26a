"""Model, task and data: who reads what, and what is measured on it."""

from ablate.conflicts.conflict import Conflict
from ablate.facts import IMAGES, PAIRS, RECALL, SERIES, TEXT

WRITERS = ("transformer", "rnn_seq2seq")  # models that read a source and write a target
FORECASTERS = ("rnn_forecaster", "transformer_forecaster")  # models that read values

TASK: list[Conflict] = [
    Conflict(
        lambda c: c.option("model") in ("gpt", "rnn_lm") and c.kind == IMAGES,
        "model={model} reads text, and data={data} is pictures; use model=vit, or data=pydoc",
    ),
    Conflict(
        lambda c: c.option("model") in ("vit", "timm") and c.kind != IMAGES,
        "model={model} reads pictures, and data={data} is {:kind}; use model={:reader}, or"
        " data=digits",
    ),
    Conflict(
        lambda c: c.option("model") in ("gpt", "rnn_lm") and c.kind == PAIRS,
        "model={model} reads one text, and data={data} is pairs of texts; use model={:reader}, or"
        " data=pydoc",
    ),
    Conflict(
        lambda c: c.option("model") in ("gpt", "rnn_lm") and c.kind == SERIES,
        "model={model} reads text, and data={data} is a series of numbers; use model={:reader}, or"
        " data=pydoc",
    ),
    Conflict(
        lambda c: c.option("model") in FORECASTERS and c.kind != SERIES,
        "model={model} reads a series of numbers, and data={data} is {:kind}; use model={:reader},"
        " or data=series",
    ),
    Conflict(
        lambda c: c.option("model") in ("transformer", "rnn_seq2seq") and c.kind != PAIRS,
        "model={model} reads pairs of texts, and data={data} is {:kind}; use model={:reader}, or"
        " data=dates",
    ),
    Conflict(
        lambda c: c.option("task") == "causal_lm" and c.kind != TEXT,
        "task=causal_lm needs text, and data={data} is {:kind}",
    ),
    Conflict(
        lambda c: c.option("task") == "classification" and c.kind != IMAGES,
        "task=classification needs pictures with classes, and data={data} is {:kind}",
    ),
    Conflict(
        lambda c: c.option("task") == "recall" and c.kind != RECALL,
        "task=recall needs data=recall, and data={data} is {:kind}",
    ),
    Conflict(
        lambda c: c.option("task") == "seq2seq" and c.kind != PAIRS,
        "task=seq2seq needs pairs of texts, and data={data} is {:kind}",
    ),
    Conflict(
        lambda c: (
            c.option("task") == "seq2seq"
            and c.is_ours("model")
            and c.option("model") not in WRITERS
        ),
        "task=seq2seq needs a model that reads a source and writes a target, and model={model} does"
        " not; use model=transformer or model=rnn_seq2seq",
    ),
    Conflict(
        lambda c: c.option("model") in WRITERS and c.option("task") != "seq2seq",
        "model={model} needs task=seq2seq, not task={task}",
    ),
    Conflict(
        lambda c: c.option("task") == "forecasting" and c.kind != SERIES,
        "task=forecasting needs a series of numbers, and data={data} is {:kind}",
    ),
    Conflict(
        lambda c: (
            c.option("task") == "forecasting"
            and c.is_ours("model")
            and c.option("model") not in FORECASTERS
        ),
        "task=forecasting needs a model that reads values and says the next, and model={model} does"
        " not; use model=rnn_forecaster or model=transformer_forecaster",
    ),
    Conflict(
        lambda c: c.option("model") in FORECASTERS and c.option("task") != "forecasting",
        "model={model} needs task=forecasting, not task={task}",
    ),
    Conflict(
        lambda c: c("task.beam") == 1 and c("task.length_penalty") > 0,
        "task.length_penalty={task.length_penalty} ranks what a beam finds, and has no effect with"
        " task.beam=1",
    ),
    Conflict(
        lambda c: max(c("task.mixup"), c("task.cutmix")) > 0 and c("data.batch_size") % 2 != 0,
        "task.mixup and task.cutmix mix pairs: data.batch_size={data.batch_size} must be even",
    ),
    Conflict(
        lambda c: c("model.share_embeddings") and not c("data.joint"),
        "model.share_embeddings=true needs one vocabulary for both sides; set data.joint=true",
    ),
    Conflict(
        lambda c: c("model.share_embeddings") and not c.joint and c.get("data.joint", None) is None,
        "model.share_embeddings=true needs one vocabulary for both sides, and data={data} has two;"
        " set model.share_embeddings=false",
    ),
]
