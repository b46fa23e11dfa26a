"""Draw one image of a caption, or a part of a given one anew, for ablate.generate."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from ablate.errors import UserError
from ablate.seeding import derive

if TYPE_CHECKING:
    from ablate.task.diffusion import Diffusion


def paint(task: Diffusion, given: Mapping[str, Any], folder: Path) -> Iterator[str]:
    """Write the image for --prompt, and yield its path."""
    if "prompt" not in given:
        raise UserError('give --prompt "...", the caption of the image to draw')
    images = given.get("image", [folder / "figures" / "generated.png"])
    if len(images) > 1:
        raise UserError("--image: give one, the file that is written")
    target = Path(images[0])
    if not target.parent.is_dir():
        raise UserError(f"--image {target}: there is no folder {target.parent}")
    if target.suffix != ".png" or target.is_dir():
        raise UserError(f"--image {target}: is written as a PNG; give a name that ends in .png")
    words = task.caption(given["prompt"])
    keys = [derive(given.get("seed", 0), "drawn")]
    how = {"guidance": given.get("guidance"), "steps": given.get("steps")}
    if (known := to_fill(task, given)) is None:
        if "mask" in given:
            raise UserError("--mask says what is drawn anew: give --inpaint FILE or --index N, too")
        picture = task.data.pictures(task.sample(words, keys, **how))[0]
    else:
        picture = filled(task, words, keys, known, mask_of(task, given), **how)[0]
    Image.fromarray((255 * picture.numpy()).round().astype(np.uint8)).save(target)
    yield str(target)


def to_fill(task: Diffusion, given: Mapping[str, Any]) -> Tensor | None:
    """The image of --inpaint or --index, 1 y x; None without either."""
    if {"inpaint", "index"} <= given.keys():
        raise UserError("give --inpaint FILE, or --index N of the validation split, not both")
    if "inpaint" in given:
        return task.data.read_picture(Path(given["inpaint"]), key="--inpaint")
    if "index" in given:
        return task.data.originals("val", task.numbered(given["index"])["index"])
    return None


def mask_of(task: Diffusion, given: Mapping[str, Any]) -> Tensor:
    """1 y x, True where the image is drawn anew: a half of it, or the white pixels of a file."""
    if "mask" not in given:
        raise UserError("give --mask left, right or FILE: what is drawn anew (white in a file)")
    height, width = task.data.size
    columns = torch.arange(width).expand(1, height, width)
    if given["mask"] in ("left", "right"):
        return (columns < width // 2) == (given["mask"] == "left")
    return task.data.read_picture(Path(given["mask"]), key="--mask") > 0.5


def filled(
    task: Diffusion, words: Tensor, keys: list[int], known: Tensor, mask: Tensor, **how: Any
) -> Tensor:
    """Pictures, b y x, with what the mask marks, b y x, drawn anew for captions, b j."""
    shrunk = F.max_pool2d(mask[:, None].float(), task.data.reduction) > 0
    images = task.data.images(known).to(task.device)
    drawn = task.sample(words, keys, known=(images, shrunk.to(task.device)), **how)
    return torch.where(mask, task.data.pictures(drawn), known)
