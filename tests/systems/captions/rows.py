"""Rows of the tables of tests for captions; see tests/make_systems.py."""

from typing import Any

import torch
from make_systems import CAPTIONS, DECODER, Tiny

from ablate.systems.captions.captioning import unevenness

SIZES: dict[str, Any] = {"captioner": CAPTIONS | DECODER | {"gate": "none", "pos_enc": "none"}}
AXES = {"model.gating_scalar": [True, False], "task.doubly_stochastic": [0.0, 0.1]}
MODELS = {"captioner": Tiny("digit_strings", ("model.dim=12",), {})}
EXAMPLES = {
    "doubly stochastic attention": lambda: unevenness(
        torch.tensor([[[0.5, 0.5, 0], [0.2, 0.7, 0.1]]], dtype=torch.float64)
    ),
}
REFUSED = """
3 model=captioner model.dim=10 pos_enc=rotary task.doubly_stochastic=1 model.normalizer=hard
3 model=captioner task.doubly_stochastic=1 model.attention=uniform data.min_digits=5 data.width=31
1 model=captioner data.autoencoder=RUN
"""
ALLOWED = """
model=captioner task.doubly_stochastic=1 model.attention=location kernel=sdpa
"""


def accepted() -> dict[str, dict[str, list[Any]]]:
    from accepted import DISTANCES, KERNELS, but
    from make_model import scores

    return {
        "captioner": KERNELS
        | {
            "model.attention": scores(),
            "pos_enc": but("pos_enc", *DISTANCES, "relative_2d"),
            "model.norm_type": ["layer", "batch"],
        }
    }
