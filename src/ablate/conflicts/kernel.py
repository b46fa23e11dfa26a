"""Kernels: what each cannot compute, and where there is nothing to compute."""

from ablate.conflicts.conflict import Conflict
from ablate.facts import Facts


def _triton(c: Facts) -> bool:
    return c.option("kernel") == "triton"


TRITON: list[Conflict] = [
    Conflict(
        lambda c: (
            _triton(c) and not c.interpreted and c("trainer.accelerator") in ("cpu", "mps", "tpu")
        ),
        "kernel=triton runs on GPUs of NVIDIA and AMD, and trainer.accelerator="
        "{trainer.accelerator} is none; use kernel=auto, or trainer=gpu",
    ),
    Conflict(
        lambda c: _triton(c) and not c.interpreted and c("trainer.precision") == "64-true",
        "kernel=triton computes in float32, and trainer.precision=64-true asks for more; use"
        " kernel=auto",
    ),
    *(
        Conflict(
            lambda c, score=score: (  # type: ignore[misc]
                _triton(c) and c.option(score) != "none" and not c.states(score, "sums")
            ),
            f"kernel=triton computes additive scores only, and {score}={{{score}}} is none; use"
            f" kernel=auto, or {score}=additive",
        )
        for score in ("model.attention", "model.cross_attention")
    ),
    Conflict(
        lambda c: _triton(c) and not c.states("model.normalizer", "fused"),
        "kernel=triton computes softmax alone, and model.normalizer={model.normalizer} is another;"
        " use kernel=auto",
    ),
    Conflict(
        lambda c: _triton(c) and c.states("model.window", "weighs"),
        "kernel=triton hides the weights that model.window={model.window} multiplies; use"
        " kernel=auto",
    ),
    Conflict(
        lambda c: _triton(c) and c.option("pos_enc") == "relative" and c("pos_enc.values"),
        "kernel=triton hides the weights that pos_enc=relative with pos_enc.values=true needs; use"
        " kernel=auto or pos_enc.values=false",
    ),
    Conflict(
        lambda c: _triton(c) and c.option("pos_enc") == "relative_2d",
        "kernel=triton has biases by the distance j - i, and pos_enc=relative_2d goes by rows and"
        " columns; use kernel=auto",
    ),
    Conflict(
        lambda c: _triton(c) and c.option("model") == "vit" and c.option("model.mask") == "window",
        "kernel=triton lets a query see one range of keys, and model.mask=window of a picture is"
        " several; use kernel=auto",
    ),
    Conflict(
        lambda c: _triton(c) and c.option("model.mask") == "neighbours",
        "kernel=triton lets a query see a range of keys, and model.mask=neighbours goes along"
        " edges; use kernel=auto, or model.mask=none",
    ),
]
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
    *TRITON,
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
