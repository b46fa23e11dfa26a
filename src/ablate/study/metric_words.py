"""Metrics and directions in words."""

from ablate.errors import UserError

SPLITS = {"val": "validation", "test": "test", "train": "training"}
LOWER = (
    "loss", "perplexity", "bits_per_char", "wer", "cer", "per", "aer", "mae", "rmse",
    "naive_mae", "naive_rmse",
)  # fmt: skip
HIGHER = ("accuracy", "token_accuracy", "top5", "exact_match", "bleu", "chrf")


def metric_words(name: str) -> str:
    """Write "val/bits_per_char" as "validation bits per char"."""
    split, _, rest = name.partition("/")
    if not rest:
        return name.replace("_", " ")
    return f"{SPLITS.get(split, split)} {rest.replace('_', ' ').replace('/', ' ')}"


def direction(mode: str) -> str:
    return "lower is better" if mode == "min" else "higher is better"


def mode_of(metric: str) -> str:
    """Return min or max if the metric's name tells its direction; UserError otherwise."""
    parts = metric.partition("@")[0].split("/")
    if any(part in HIGHER for part in parts):
        return "max"
    if any(part in LOWER for part in parts):
        return "min"
    raise UserError(f"--metric {metric}: say which is better, --mode min or --mode max")
