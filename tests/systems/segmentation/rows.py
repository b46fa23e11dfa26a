"""Rows of the tables of tests for segmentation; see tests/make_systems.py."""

from pathlib import Path
from typing import Any

import numpy as np
import tiny
import torch
from make_systems import BLOCKS, COUNTS, Tiny
from PIL import Image
from torchvision.ops import sigmoid_focal_loss

from ablate.systems.segmentation.segmentation import dice_loss

SIZES: dict[str, Any] = {
    "sam": BLOCKS
    | {"image_size": (16, 16), "channels": 1, "prompt_length": 4, "patch": 4, "points": "fourier"}
    | {"dim": 16, "heads": 2, "depth": 1, "pos_enc": "relative_2d"},
}
AXES = {
    "model.num_masks": [3, 1],
    "model.decoder.ffn_dim": [12, None],
    "model.exchange": ["two_way", "one_way", "none"],
    "model.mask_prompt": [True, False],
    "task.clicks": [2, 1],
    "task.boxes": [0.5, 0.0],
}
MODELS = {
    "sam": Tiny(
        "overlapping_digits",
        ("model.dim=16", "model.heads=2", "model.depth=2", "task.clicks=2", "pos_enc=learned_2d"),
        {},
        {"model.dim": [16, 8], "model.heads": [2, 1], "model.patch": [4, 2]},
    ),
}
MISTAKES = [
    ("overlapping_digits", {"size": 8, "scale": 2}, "too small for digits of 16 pixels"),
    ("overlapping_digits", {"min_digits": 3}, "data.min_digits=3: is above data.max_digits=2"),
    ("overlapping_digits", {"unfamiliar": list(range(10))}, "data.unfamiliar: leaves no digit"),
]
ONE_FILE = ["mask_folder"]
DATA_OTHERS = {"scale": 2, "dimmest": 1.0, "unfamiliar": [7], "min_pixels": 12, "void": 2}
DATA_OF_ONE = {"overlapping_digits": {"size": 24, "min_digits": 1}}
BRIEF = ["sam"]
KNOBS_BESIDE = {"sam": ["task.clicks=1", "model.mask_prompt=false"]}
FILES = {
    "overlapping_digits": COUNTS | {"size": 16, "scale": 1, "max_digits": 2},
    "mask_folder": {"root": "mask_folder", "size": 8, "min_pixels": 1, "batch_size": 4},
}
FILES_GONE = {"mask_folder": (["model=sam", "model.depth=1", "model.heads=2"], [])}
UNKEPT = {"overlapping_digits": None}  # read again
REFUSED = """
3 model=sam task.clicks=1 data.size=8 data.scale=2 model.dim=36 model.heads=2
1 model=sam model.exchange=none model.cross_attention=dot
"""


def fourier() -> Any:
    from make_model import part

    points = part("model.points", "fourier")(dim=2, image_size=(1, 1)).double()
    with torch.no_grad():
        (frequencies,) = points.parameters()
        frequencies.copy_(torch.tensor([0.25, 0.0]).view(frequencies.shape))
    return points(torch.tensor([[0.75, 0.5]], dtype=torch.float64))


HALVES = torch.full((2,), 0.5, dtype=torch.float64)
TARGETS = torch.tensor([1.0, 0.0], dtype=torch.float64)
EXAMPLES = {
    "dice loss": lambda: dice_loss(torch.zeros(1, 2).double(), TARGETS[None]),
    "focal loss": lambda: sigmoid_focal_loss(torch.zeros(2).double(), TARGETS),
    "random Fourier features": fourier,
}


def masks(folder: Path, *more: str) -> list[str]:
    """A tiny run."""
    own = (
        f"model=sam data.size=16 data.scale=1 {tiny.COUNTS}"
        " model.dim=16 model.heads=2 model.depth=2 model.decoder.ffn_dim=24"
    )
    return [*own.split(), *tiny.four_steps(folder), *more]


def accepted() -> dict[str, dict[str, list[Any]]]:
    from accepted import BLOCKS

    return {"sam": BLOCKS}


def write(folder: Path) -> None:
    mask_folder(folder / "mask_folder", np.random.default_rng(0))


def mask_folder(folder: Path, rng: np.random.Generator) -> None:
    """Two rectangles on a picture of noise, numbered 1 and 2."""
    for name in ("images", "masks"):
        (folder / name).mkdir(parents=True)
    for n in range(24):
        mask = np.zeros((9, 12), np.uint8)
        mask[n % 4 : 5, 1:6], mask[6:, n % 5 :] = 1, 2
        picture = rng.integers(256, size=(9, 12, 3), dtype=np.uint8)
        Image.fromarray(picture).save(folder / "images" / f"{n}.png")
        Image.fromarray(mask).save(folder / "masks" / f"{n}.png")
