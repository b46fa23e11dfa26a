"""Write the masks of a segmentation, for ablate.generate."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from ablate.errors import UserError
from ablate.figures.save import save
from ablate.run_files import replacing
from ablate.systems.segmentation.figures import Answered, draw_answers
from ablate.systems.segmentation.prompts import (
    BACKGROUND,
    FIRST_CORNER,
    LAST_CORNER,
    OBJECT,
    PADDING,
)
from ablate.systems.segmentation.sam import SAM, Prompt, picked
from ablate.systems.segmentation.segments import Segments

Arguments = Mapping[str, Any]  # the options of ablate.generate
PROMPTS = ("point", "background", "box")


def image_files(arguments: Arguments) -> list[Path]:
    """The files of --image. UserError for options that do not go together."""
    if "image" in arguments:
        if "index" in arguments:
            raise UserError("--image FILE and --index N exclude each other")
        files = [Path(file) for file in arguments["image"]]
        if len({file.stem for file in files}) < len(files):
            raise UserError(
                "--image: the masks are named after the files, and two files have the same name;"
                " rename one"
            )
        return files
    if prompted := [name for name in PROMPTS if name in arguments]:
        raise UserError(
            f"--{prompted[0]} requires --image; --index is prompted at the largest error"
        )
    return []


@torch.no_grad()
def write_mask(
    model: SAM, data: Segments, arguments: Arguments, file: Path, folder: Path
) -> Iterator[str]:
    """The mask of a prompt in an image file: a figure, and the mask at the size of the file."""
    image, (height, width) = data.read_image(file)
    size = (image.shape[2], image.shape[3])
    clicks, box = prompt_of(arguments, (height, width), size)
    points, labels = as_rounds(clicks, box)
    device = next(model.parameters()).device
    logits, iou = model(*(x.to(device) for x in (image, points, labels)))
    answer = Answered(
        image=data.visible(image[0]),
        masks=picked(logits, iou)[-1:],
        titles=[f"predicted IoU {float(iou[0, -1].max()):.2f}"],
        clicks=clicks,
        box=box and (range(box[1], box[3] + 1), range(box[0], box[2] + 1)),
        truth=None,
        name=file.name,
    )
    mask = Image.fromarray(answer.masks[0].numpy())
    path = folder / "figures" / f"{file.stem}_mask.png"
    path.parent.mkdir(exist_ok=True)
    with replacing(path) as temporary:
        mask.resize((width, height), Image.Resampling.NEAREST).save(temporary, "PNG")
    figure = draw_answers([answer], f"The mask of the prompt in {file.name}")
    yield f"{answer.titles[0]}, {float(answer.masks[0].float().mean()):.1%} of the image"
    yield str(path)
    yield str(save(figure, folder / "figures" / f"{file.stem}_prompt.png"))


Clicks = list[tuple[int, int, int]]
Corners = tuple[int, int, int, int]


def prompt_of(
    arguments: Arguments, sides: tuple[int, int], size: tuple[int, int]
) -> tuple[Clicks, Corners | None]:
    """The clicks and the box that were given in pixels of a file of size `sides`, height and width,
    in pixels of the image that the model reads."""

    def scaled(name: str, text: str, count: int) -> list[int]:
        try:
            numbers = [int(part) for part in text.split(",")]
        except ValueError:
            numbers = []
        ends = [*sides[::-1]] * (count // 2)
        if len(numbers) != count or not all(
            0 <= n < end for n, end in zip(numbers, ends, strict=False)
        ):
            what = "X,Y" if count == 2 else "X0,Y0,X1,Y1"
            raise UserError(
                f"--{name} {text}: must be {what} in pixels of the image ({sides[1]} x {sides[0]})"
            )
        into = [*size[::-1]] * (count // 2)
        return [n * to // end for n, end, to in zip(numbers, ends, into, strict=True)]

    clicks = [
        (*scaled(name, text, 2), label)
        for name, label in (("point", OBJECT), ("background", BACKGROUND))
        for text in arguments.get(name, [])
    ]
    box = None
    if "box" in arguments:
        x0, y0, x1, y1 = scaled("box", arguments["box"], 4)
        if x1 < x0 or y1 < y0:
            raise UserError(
                f"--box {arguments['box']}: the first corner must be the upper left one"
            )
        box = x0, y0, x1, y1
    if not box and not arguments.get("point"):
        raise UserError("--image needs a prompt: --point X,Y, or --box X0,Y0,X1,Y1")
    return clicks, box  # type: ignore[return-value]


def as_rounds(clicks: Clicks, box: Corners | None) -> Prompt:
    """The prompt as the model reads it: the box or the first click, then the other clicks."""
    if box:
        first = [(*box[:2], FIRST_CORNER), (*box[2:], LAST_CORNER)]
    else:
        first, clicks = [clicks[0], (0, 0, PADDING)], clicks[1:]
    everything = torch.tensor([*first, *clicks])[None]
    return everything[..., :2], everything[..., 2]
