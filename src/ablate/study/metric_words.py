"""Metrics and directions in words."""

import re

from ablate.errors import UserError

SPLITS = {"val": "validation", "test": "test", "train": "training"}
# Names of metrics, and their last words: next_accuracy, horizon_mae.
HIGHER = {"accuracy", "acc", "acc_norm", "top5", "exact_match", "bleu", "chrf", "psnr"}
LOWER = {"loss", "perplexity", "bits_per_char", "bits_per_byte", "iou_error", "mae", "rmse"}
# Whole names only: as a last word they may mean something else.
RATES = {"wer", "cer", "per", "aer", "der"}
NUMBERED = "miou_", "oracle_"  # with the clicks, or a box
# Quantities that study.match makes equal.
BUDGETS = {"parameters": "parameters", "flops": "FLOPs per step"}
# Functions of the loss, which are best at the same step.
OF_LOSS = {"loss", "perplexity", "bits_per_char", "bits_per_byte"}


def metric_words(name: str) -> str:
    """Write "val/bits_per_char" as "validation bits per char"."""
    split, _, rest = name.partition("/")
    if not rest:
        return name.replace("_", " ")
    return f"{SPLITS.get(split, split)} {rest.replace('_', ' ').replace('/', ' ')}"


def direction(mode: str) -> str:
    return "lower is better" if mode == "min" else "higher is better"


def mode_of(metric: str, *, typed: str = "--metric ", by: str = "--mode ") -> str:
    """Return min or max if the metric's name tells its direction; UserError otherwise. typed, by:
    the text before the metric and before the direction in its message."""
    for part in re.split("[@,]", metric)[0].split("/"):  # val/accuracy/CLASS, for any class
        names = {part, part.rpartition("_")[2]}
        if names & HIGHER or part.startswith(NUMBERED):
            return "max"
        if names & LOWER or part in RATES:
            return "min"
    raise UserError(f"{typed}{metric}: set the better direction, {by}min or {by}max")


def best_together(metric: str, other: str) -> bool:
    """Whether the weights that are best by one metric are best by the other."""
    (split, _, name), (of, _, its) = metric.rpartition("/"), other.rpartition("/")
    return metric == other or (split == of and {name, its} <= OF_LOSS)
