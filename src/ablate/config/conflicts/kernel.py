"""Kernels: what each cannot compute, and models without anything to compute."""

from ablate.config.rules import Conflict

HIDES = ("sdpa", "triton", "flex")  # do not return the weights
RANGES = ("triton", "flex")  # use the distance j - i, and one range of keys per query
SLOTS = ("model.attention", "model.cross_attention")


def _computes(kernel: str, slot: str, stated: str, scores: str) -> Conflict:
    """The conflict of a kernel that only computes scores with the attribute `stated`."""
    return Conflict(
        lambda c: (
            c.option("kernel") == kernel and c.option(slot) != "none" and not c.states(slot, stated)
        ),
        f"kernel={kernel} computes {scores} only, and {slot}={{{slot}}} is none; use kernel=auto",
    )


KERNEL: list[Conflict] = [
    *(
        _computes(kernel, slot, stated, scores)
        for slot in SLOTS
        for kernel, stated, scores in (
            ("sdpa", "lowers", "scaled dot products"),
            ("flex", "lowers", "scaled dot products"),
            ("triton", "sums", "additive scores"),
        )
    ),
    Conflict(
        lambda c: (
            c.option("kernel") in RANGES
            and not (c.option("kernel") == "triton" and c.interpreted)
            and c("trainer.accelerator") in ("cpu", "mps", "tpu")
        ),
        "kernel={kernel} runs on GPUs of NVIDIA and AMD, and trainer.accelerator="
        "{trainer.accelerator} is none; use kernel=auto, or trainer=gpu",
    ),
    Conflict(
        lambda c: c.option("kernel") in RANGES and c("trainer.precision") == "64-true",
        "kernel={kernel} computes in float32, and trainer.precision=64-true asks for more; use"
        " kernel=auto",
    ),
    Conflict(
        lambda c: c.option("kernel") == "flex" and c("model.dropout") > 0,
        "kernel=flex has no dropout of the weights, and model.dropout={model.dropout}; use"
        " kernel=auto, or model.dropout=0",
    ),
    Conflict(
        lambda c: c.option("kernel") in HIDES and not c.states("model.normalizer", "fused"),
        "kernel={kernel} computes softmax alone, and model.normalizer={model.normalizer} is"
        " another; use kernel=auto",
    ),
    Conflict(
        lambda c: c.option("kernel") in HIDES and c.states("model.window", "weighs"),
        "kernel={kernel} hides the weights that model.window={model.window} multiplies; use"
        " kernel=auto",
    ),
    Conflict(
        lambda c: (
            c.option("kernel") in HIDES
            and c.option("pos_enc") == "relative"
            and c("pos_enc.values")
        ),
        "kernel={kernel} hides the weights that pos_enc=relative with pos_enc.values=true needs;"
        " use kernel=auto or pos_enc.values=false",
    ),
    Conflict(
        lambda c: c.option("kernel") in RANGES and c.option("pos_enc") == "relative_2d",
        "kernel={kernel} has biases by the distance j - i, and pos_enc=relative_2d goes by rows and"
        " columns; use kernel=auto",
    ),
    Conflict(
        lambda c: (
            c.option("kernel") in RANGES
            and c.option("model") == "vit"
            and c.option("model.mask") == "window"
        ),
        "kernel={kernel} lets a query see one range of keys, and model.mask=window of an image is"
        " several; use kernel=auto",
    ),
    Conflict(
        lambda c: c.option("kernel") in RANGES and c.option("model.mask") == "neighbours",
        "kernel={kernel} lets a query see a range of keys, and model.mask=neighbours goes along"
        " edges; use kernel=auto, or model.mask=none",
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
