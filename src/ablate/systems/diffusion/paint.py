"""Generate an image of a caption, or a region of a given one, for ablate.generate, and the figures
of a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from ablate.data.pairs import BOS
from ablate.errors import UserError
from ablate.figures.save import save
from ablate.random.seeding import derive
from ablate.run_files import replacing
from ablate.systems.diffusion.figures import draw_images
from ablate.task.presenter import val_example

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CAPTIONS = ("7", "3 1", "4 5", "2 0 2", "1 2 3 4")
GUIDANCE = (0.0, 1.0, 3.0, 7.0)
SHOWN = 6  # steps of one sample


def paint(task: Any, arguments: Mapping[str, Any], folder: Path) -> Iterator[str]:
    """Write the image for --prompt, and yield its path."""
    if "prompt" not in arguments:
        raise UserError('--prompt "...", the caption of the image, is required')
    target = Path(arguments.get("image", folder / "figures" / "generated.png"))
    if "image" in arguments and not target.parent.is_dir():
        raise UserError(f"--image {target}: {target.parent} does not exist")
    if target.suffix != ".png" or target.is_dir():
        raise UserError(f"--image {target}: output is PNG; choose a name that ends in .png")
    words = caption(task, arguments["prompt"])
    keys = [derive(arguments.get("seed", 0), "drawn")]
    how = {"guidance": arguments.get("guidance"), "steps": arguments.get("steps")}
    if task.drop_caption == 0 and how["guidance"] not in (None, 1):
        raise UserError(
            f"--guidance {how['guidance']}: amplifies the caption against none, which a run with"
            " task.drop_caption=0 has not learned; leave it out"
        )
    if (known := to_fill(task, arguments)) is None:
        if "mask" in arguments:
            raise UserError("--mask requires --inpaint FILE or --index N")
        pixels = task.data.to_pixels(task.sample(words, keys, **how))[0]
    else:
        pixels = fill(task, words, keys, known, mask_of(task, arguments), **how)[0]
    target.parent.mkdir(exist_ok=True)  # a run may have no figures yet
    with replacing(target) as temporary:
        Image.fromarray((255 * pixels.numpy()).round().astype(np.uint8)).save(temporary, "PNG")
    yield str(target)


def caption(task: Any, text: str) -> Tensor:
    """A caption as the model reads it, 1 j; UserError for words that it does not know."""
    data, words = task.data, text.split()
    known = [str(digit) for digit in range(10)]
    if strange := [word for word in words if word not in known]:
        raise UserError(
            f"--prompt: {strange[0]!r} is not a word of this data; use {' '.join(known)}"
        )
    if not data.least <= len(words) <= data.most:
        raise UserError(
            f"--prompt: has {len(words)} digits, and the images of this data {data.least} to"
            f" {data.most}"
        )
    tokens = data.target_tokenizer.encode(" ".join(words))
    return torch.tensor([[BOS, *tokens]], device=task.device)


def fill(
    task: Any, words: Tensor, keys: list[int], known: Tensor, mask: Tensor, **how: Any
) -> Tensor:
    """Pixels, b y x, with the masked region, b y x, generated again for captions, b j."""
    images = task.data.images(known).to(task.device)
    shrunk = F.adaptive_max_pool2d(mask[:, None].float(), images.shape[-2:]) > 0
    drawn = task.sample(words, keys, known=(images, shrunk.to(task.device)), **how)
    return torch.where(mask, task.data.to_pixels(drawn), known)


def to_fill(task: Any, arguments: Mapping[str, Any]) -> Tensor | None:
    """The image of --inpaint or --index, 1 y x; None without either."""
    if {"inpaint", "index"} <= arguments.keys():
        raise UserError("--inpaint FILE and --index N of the validation split exclude each other")
    if "inpaint" in arguments:
        return task.data.read_pixels(Path(arguments["inpaint"]), key="--inpaint")
    if "index" in arguments:
        return task.data.originals("val", val_example(task.data, arguments["index"])["index"])
    return None


def mask_of(task: Any, arguments: Mapping[str, Any]) -> Tensor:
    """1 y x, True in the region to generate: a half of it, or the white pixels of a file."""
    if "mask" not in arguments:
        raise UserError(
            "--mask left, right or FILE is required: the region to generate (white in a file)"
        )
    height, width = task.data.size
    columns = torch.arange(width).expand(1, height, width)
    if arguments["mask"] in ("left", "right"):
        return (columns < width // 2) == (arguments["mask"] == "left")
    return task.data.read_pixels(Path(arguments["mask"]), key="--mask") > 0.5


def draw_samples(task: Any, folder: Path) -> list[Path]:
    """Write samples.png, denoising.png and inpainting.png; return their paths."""
    figures = {"samples": samples, "denoising": denoising, "inpainting": inpainting}
    return [save(draw(task), folder / f"{name}.png") for name, draw in figures.items()]


def captions(task: Any) -> list[str]:
    """Those of `CAPTIONS` that the data could have, or one that it has."""
    data = task.data
    fitting = [text for text in CAPTIONS if data.least <= len(text.split()) <= data.most]
    return fitting or [data.reference("val", 0)]


def drawn(task: Any, text: str, **how: Any) -> Tensor:
    """The image generated for a caption, y x, from the noise that all figures have."""
    images = task.sample(caption(task, text), [derive(0, "drawn")], **how)
    return task.data.to_pixels(images)[0]


def samples(task: Any) -> Figure:
    """Captions from top to bottom, guidance from left to right, in each row the same noise."""
    texts = captions(task)
    guided = GUIDANCE if task.drop_caption else (1.0,)
    without = "; at 0 the caption is not read" if 0 in guided else ""
    return draw_images(
        [[drawn(task, text, guidance=guidance) for guidance in guided] for text in texts],
        f"Images generated for captions (left), from the same noise{without}",
        names=[f"guidance {guidance:g}" for guidance in guided],
        labels=[f'"{text}"' for text in texts],
    )


def denoising(task: Any) -> Figure:
    """The noisy images of some steps of one sample, and the result."""
    text, path = captions(task)[-1], list[Tensor]()
    last = drawn(task, text, path=path)
    count = min(SHOWN, len(path))
    numbers = [round(n * len(path) / count) for n in range(count)]
    return draw_images(
        [[*(task.data.to_pixels(path[number])[0] for number in numbers), last]],
        f'From noise to an image of "{text}"',
        names=[f"after step {n}" if n else "noise" for n in [*numbers, len(path)]],
    )


def inpainting(task: Any) -> Figure:
    """A validation image, and its right half generated again for several captions."""
    known = task.data.originals("val", torch.tensor([0]))
    middle = known.shape[2] // 2
    mask = (torch.arange(known.shape[2]) >= middle).expand_as(known)
    texts = [task.data.reference("val", 0), *captions(task)]
    keys = [derive(0, "drawn")]
    filled = [fill(task, caption(task, text), keys, known, mask)[0] for text in texts]
    return draw_images(
        [[known[0], *filled]],
        "In-painting: the right half is generated again, the left half is kept",
        names=[f'validation image "{texts[0]}"', *(f'again for "{text}"' for text in texts)],
        line=middle,
    )
