"""Metrics and directions in words."""

from ablate.errors import UserError

SPLITS = {"val": "validation", "test": "test", "train": "training"}
# Words of which a metric's name is made.
HIGHER = {"accuracy", "top5", "match", "bleu", "chrf", "psnr", "miou", "oracle"}
LOWER = {
    "loss", "perplexity", "bits", "error", "wer", "cer", "per", "aer", "der", "mae", "rmse",
}  # fmt: skip


def metric_words(name: str) -> str:
    """Write "val/bits_per_char" as "validation bits per char"."""
    split, _, rest = name.partition("/")
    if not rest:
        return name.replace("_", " ")
    return f"{SPLITS.get(split, split)} {rest.replace('_', ' ').replace('/', ' ')}"


def direction(mode: str) -> str:
    return "lower is better" if mode == "min" else "higher is better"


def mode_of(metric: str, *, typed: str = "--metric ", by: str = "--mode ") -> str:
    """Return min or max if the metric's name tells its direction; UserError otherwise, with what
    was typed before the metric, and before the direction."""
    words = {*metric.partition("@")[0].replace("/", "_").split("_")}
    if words & HIGHER:  # such as val/accuracy/CLASS, whatever the class is called
        return "max"
    if words & LOWER:
        return "min"
    raise UserError(f"{typed}{metric}: say which is better, {by}min or {by}max")
