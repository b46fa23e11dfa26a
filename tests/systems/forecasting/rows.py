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
FILES = {
    "series": {"path": "series.csv", "columns": ["a"], "window": 6, "horizon": 2, "batch_size": 16},
}
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
