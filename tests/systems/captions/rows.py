"""Rows of the tables of tests for captions; see tests/make_systems.py."""

from pathlib import Path
from typing import Any

import torch
from make_systems import CAPTIONS, DECODER, Tiny
from tiny import DIGITS, four_steps

from ablate.systems.captions.captioning import unevenness

SIZES: dict[str, Any] = {"captioner": CAPTIONS | DECODER | {"gate": "none", "pos_enc": "none"}}
AXES = {"model.gating_scalar": [True, False], "task.doubly_stochastic": [0.0, 0.1]}
MODELS = {"captioner": Tiny("digit_strings", ("model.dim=12",), {})}


def words() -> tuple[Any, Any]:
    """A batch of two for the model."""
    from make_model import normal, tokens

    return normal(2, 1, 12, 24).float(), 1 + tokens(2, 5) % 4


def sentences() -> tuple[Any, Any]:
    """A batch of three for it, in float64."""
    from make_model import normal, sentences

    return normal(3, 1, 12, 24), sentences(6, 2, 4, seed=1)


DRAWS = {"captioner": ({"dropout": 0.3, "normalizer": "hard"}, words)}
FAMILIES = {"captioner": ({}, sentences)}
WRITERS = [
    *(
        ("captioner", {"attention": score, "normalizer": "hard"})
        for score in ("scaled_dot", "additive")
    ),
    ("captioner", {"cell": "gru", "gating_scalar": False, "embedding_dim": 5, "depth": 2}),
    (
        "captioner",
        {"cell": "rnn", "norm_type": "layer", "residual": False, "pos_enc": "learned_2d"},
    ),
]
FOLLOWED = [("captioner", {})]
CAPTURED = [("captioner",)]
EXAMPLES = {
    "doubly stochastic attention": lambda: unevenness(
        torch.tensor([[[0.5, 0.5, 0], [0.2, 0.7, 0.1]]], dtype=torch.float64)
    ),
}
REFUSED = """
3 model=captioner model.dim=10 pos_enc=rotary task.doubly_stochastic=1 model.normalizer=hard
1 model=captioner task.doubly_stochastic=1 model.attention=uniform
"""
ALLOWED = """
model=captioner task.doubly_stochastic=1 model.attention=location kernel=sdpa
"""


def captions(folder: Path, *more: str) -> list[str]:
    """A tiny run."""
    return ["model=captioner", *DIGITS, *four_steps(folder), *more]


# Batch norm sees each batch alone.
ACCUMULATED = {
    "captions": (
        lambda folder: captions(folder, "task.doubly_stochastic=0.5", "model.norm_type=layer"),
        True,
    ),
}


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
