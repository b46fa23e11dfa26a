"""Kernels: what each cannot compute, and where there is nothing to compute."""

from ablate.conflicts.conflict import Conflict

KERNEL: list[Conflict] = [
    Conflict(
        lambda c: c.option("kernel") == "sdpa" and not c.states("model.cross_attention", "lowers"),
        "kernel=sdpa computes scaled dot products only, and"
        " model.cross_attention={model.cross_attention} is none; use kernel=auto",
    ),
    Conflict(
        lambda c: (
            c.option("kernel") == "sdpa"
            and not c.states("model.attention", "lowers")
            and c.option("model.attention") != "none"
        ),
        "kernel=sdpa computes scaled dot products only, and model.attention={model.attention} is"
        " none; use kernel=auto",
    ),
    Conflict(
        lambda c: (
            c.option("kernel") == "sdpa"
            and c.option("pos_enc") == "relative"
            and c("pos_enc.values")
        ),
        "kernel=sdpa hides the weights that pos_enc=relative with pos_enc.values=true needs; use"
        " kernel=auto or pos_enc.values=false",
    ),
    Conflict(
        lambda c: c.option("kernel") == "sdpa" and not c.states("model.normalizer", "fused"),
        "kernel=sdpa computes softmax alone, and model.normalizer={model.normalizer} is another;"
        " use kernel=auto",
    ),
    Conflict(
        lambda c: c.option("kernel") == "sdpa" and c.states("model.window", "weighs"),
        "kernel=sdpa hides the weights that model.window={model.window} multiplies; use"
        " kernel=auto",
    ),
    Conflict(
        lambda c: c.option("model.attention") == "none" and c.option("kernel") != "auto",
        "kernel={kernel} has no effect with model.attention=none; use kernel=auto",
    ),
    Conflict(
        lambda c: c.option("model") == "rnn_lm" and c.option("kernel") != "auto",
        "kernel={kernel} has no effect on model=rnn_lm, which has no attention; use kernel=auto",
    ),
    Conflict(
        lambda c: c.option("model") == "resnet" and c.option("kernel") != "auto",
        "kernel={kernel} has no effect on model=resnet, which has no attention; use kernel=auto",
    ),
    Conflict(
        lambda c: c.option("model") == "timm" and c.option("kernel") != "auto",
        "kernel={kernel} has no effect on model=timm, which computes its own way; use kernel=auto",
    ),
]
