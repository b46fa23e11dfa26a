"""Rows of the tables of tests for forecasting; see tests/make_systems.py."""

from pathlib import Path
from typing import Any

import numpy as np
from make_systems import BLOCKS, Tiny

SERIES = {"channels": 2, "length": 9}
SIZES: dict[str, Any] = {
    "rnn_forecaster": SERIES
    | {"dim": 6, "attention": "none", "normalizer": "softmax", "kernel": "reference"},
    "transformer_forecaster": SERIES
    | {key: value for key, value in BLOCKS.items() if key != "depth"}
    | {"pos_enc": "learned", "mask": "causal", "dropout": 0.0},
}
AXES = {"model.predict_residual": [True, False]}
MODELS = {
    "rnn_forecaster": Tiny("series", ("model.dim=12", "model.depth=2"), {}),
    "transformer_forecaster": Tiny(
        "series", ("model.dim=12", "model.heads=2", "model.depth=2"), {}
    ),
}


def values() -> tuple[Any, ...]:
    """A batch of three, in float64."""
    from make_model import normal

    return (normal(3, 9, 2),)


FAMILIES = {name: ({}, values) for name in MODELS}
FORECASTERS = [
    *(
        ("rnn_forecaster", {"attention": score})
        for score in ("scaled_dot", "additive", "location", "uniform", "none")
    ),
    (
        "rnn_forecaster",
        {"attention": "dot", "depth": 3, "residual": True, "predict_residual": False}
        | {"cell": "rnn"},
    ),
    *(("transformer_forecaster", {"pos_enc": name}) for name in ("learned", "alibi")),
    (
        "transformer_forecaster",
        {"attention": "additive", "mask": "window", "predict_residual": False},
    ),
]
FILES = {
    "series": {"path": "series.csv", "columns": ["a"], "window": 6, "horizon": 2, "batch_size": 16},
}
SUNSPOTS = {"path": None, "columns": None, "window": 22, "horizon": 11}
MISTAKES = [
    ("series", SUNSPOTS | {"columns": ["x"]}, "data.columns=[x]: the sunspots have one column"),
    ("series", {"columns": ["a", "a"]}, "names a column twice"),
    ("series", SUNSPOTS | {"window": 10}, "data.period=11"),
    ("series", SUNSPOTS | {"window": 280}, "data.window=280: the training part of 309 values"),
    ("series", SUNSPOTS | {"horizon": 47}, "data.horizon=47: the val part "),
]
FILE_READERS = {"series": {"columns": ["a"]}}
LOADED = {"series": {"batch_size": 8}}
FILES_GONE = {
    "series": (["model=transformer_forecaster", "model.depth=1", "model.heads=2"], []),
}
DATA_OTHERS = {"columns": ["b"]}
DATA_OF_ONE = {"series": {"path": "other.csv"}}
DATA_SILENT = ["period"]  # what the seasonal naive forecast repeats: test_forecasting.py
DATA_PRINTED = ["columns"]
FUZZED = [
    "model=rnn_forecaster data=series data.path={} data.columns=[a] data.window=4 data.horizon=2"
]
SAME_TASK = ["transformer_forecaster"]
BRIEF = ["transformer_forecaster"]
# torch has no fake of the fused cell of a GRU.
ON_FAKE_GPU = {"model=rnn_forecaster": ["model.cell=lstm"]}
COMPILED = [("rnn_forecaster", "model.attention=additive", "model.normalizer=sparsemax")]
REFUSED = """
3 model=rnn_forecaster kernel=sdpa data.columns=[x] data.window=10 data.period=12
2 model=transformer_forecaster model.attention=none
1 model=rnn_forecaster data.val_fraction=0.6 data.test_fraction=0.4
"""
ALLOWED = """
model=rnn_forecaster data.window=12 data.period=12 data.test_fraction=null model.attention=additive
"""


def accepted() -> dict[str, dict[str, list[Any]]]:
    from accepted import ALONG, KERNELS, NO_POSITIONS

    return {"transformer_forecaster": ALONG, "rnn_forecaster": KERNELS | NO_POSITIONS}


def write(folder: Path) -> None:
    rng = np.random.default_rng(0)
    rows = [f"{n},{rng.normal():.3f},{rng.normal():.3f}" for n in range(60)]
    (folder / "series.csv").write_text("\n".join(["time,a,b", *rows]) + "\n")
    # Their times decide, whatever the order of the rows.
    turned = [f"{-n},{row.partition(',')[2]}" for n, row in enumerate(rows)]
    (folder / "other.csv").write_text("\n".join(["time,a,b", *turned]))
