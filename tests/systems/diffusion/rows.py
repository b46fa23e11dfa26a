"""Rows of the tables of tests for diffusion; see tests/make_systems.py."""

from pathlib import Path
from typing import Any

import tiny
import torch
from make_systems import BLOCKS, CAPTIONS, Tiny

from ablate.config.tree import config_files
from ablate.systems.diffusion.autoencoding import divergence

SIZES: dict[str, Any] = {
    "dit": CAPTIONS | BLOCKS | {"condition": "adaln_zero"},
    "autoencoder": CAPTIONS | {"dim": 6, "latent": 3, "num_downsamples": 2},
}
MODELS = {
    "dit": Tiny("digit_strings", ("model.dim=12", "model.heads=2", "model.depth=2"), {}),
    "autoencoder": Tiny("digit_strings", (), {}),
}
DATA_ELSEWHERE = ["digit_latents"]  # reads a run: test_autoencoder.py
NEEDS = {"data=digit_latents": ["data.autoencoder=RUN"]}
# What is measured and drawn, not how it is trained: test_diffusion.py.
KEYS_ELSEWHERE = [f"task.{key}" for key in ("guidance", "sampling_steps", "samples", "judge")]
BRIEF = ["dit"]
REFUSED = """
1 model=dit model.condition=cross_attention model.cross_attention=uniform model.residual=false
2 model=dit task.guidance=2 task.drop_caption=0 task.noise=ddpm task.sampling_steps=2000
1 model=autoencoder data=digit_latents data.autoencoder=RUN
3 model=dit model.condition=adaln_zero model.residual=false model.cross_attention=dot model.patch=5
1 model=dit model.condition=adaln_zero model.connection=sphere
"""


def flow() -> list[float]:
    from make_model import part

    process = part("task.noise", "rectified_flow")
    x, step = torch.tensor([4.0]).double(), {"fresh": None, "bounds": (-9, 9)}
    added = process.add(x, torch.tensor([2.0]).double(), torch.tensor([0.25]).double())
    three, two = torch.tensor([3.0]).double(), torch.tensor([2.0]).double()
    return [float(added), float(process.step(three, two, 0.25, 0.0, **step))]


def noisy() -> list[float]:
    from make_model import part

    process = part("task.noise", "ddpm", timesteps=100)
    n, one, zero = (torch.tensor([x]).double() for x in (0.02, 1.0, 0.0))
    return [float(process.add(one, zero, n)), float(process.add(zero, one, n))]


def step() -> tuple[Any, ...]:
    """A batch of two for the model."""
    from make_model import normal, tokens

    return normal(2, 1, 12, 24).float(), 1 + tokens(2, 5) % 4, torch.rand(2)


def sentences() -> tuple[Any, ...]:
    """A batch of three for it, in float64."""
    from make_model import normal, sentences

    return normal(3, 1, 12, 24), sentences(6, 2, 4, seed=1), normal(3).sigmoid()


DRAWS = {"dit": ({"dropout": 0.3, "depth": 3, "condition": "cross_attention", "norm": "pre"}, step)}
FAMILIES = {"dit": ({"target_length": 7}, sentences)}
LOOK_AROUND = [
    *(("dit", {"condition": file.stem}) for file in config_files("model.condition/*.yaml")),
    *(("dit", {"condition": name, "mixer": "none"}) for name in ("cross_attention", "adaln")),
]
EXAMPLES = {
    "rectified flow": flow,
    "DDPM": noisy,
    "divergence of a latent": lambda: divergence(
        torch.tensor([2.0]).double(), torch.tensor([1.0]).double()
    ),
}


def drawings(folder: Path, *more: str) -> list[str]:
    """A tiny run."""
    own = "model.heads=2 model.depth=1 task.sampling_steps=3 task.samples=6"
    return ["model=dit", *tiny.DIGITS, *own.split(), *tiny.four_steps(folder), *more]


def accepted() -> dict[str, dict[str, list[Any]]]:
    from accepted import BLOCKS, PADDED, WITHOUT_ATTENTION

    return {"dit": BLOCKS | PADDED, "autoencoder": WITHOUT_ATTENTION}
