"""Figures of a diffusion model: samples by caption and guidance, the steps of one, in-painting."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from einops import rearrange
from torch import Tensor

from ablate.figures.captions import rows
from ablate.figures.maps import Map
from ablate.figures.panels import TITLE, Panel, colour_bar, draw_panels, entitle, scale
from ablate.figures.save import save
from ablate.seeding import derive
from ablate.task.paint import filled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from ablate.task.autoencoding import Autoencoding
    from ablate.task.diffusion import Diffusion

CAPTIONS = ("7", "3 1", "2 0 2", "1 2 3 4")
GUIDANCE = (0.0, 1.0, 3.0, 7.0)
SHOWN = 6  # steps of one sample


def figures(task: Diffusion, folder: Path) -> list[Path]:
    """Write samples.png, denoising.png and inpainting.png; return their paths."""
    made = {"samples": samples, "denoising": denoising, "inpainting": inpainting}
    return [save(draw(task), folder / f"{name}.png") for name, draw in made.items()]


def captions(task: Diffusion) -> list[str]:
    """Those of `CAPTIONS` that the data could have."""
    return [text for text in CAPTIONS if len(text.split()) <= task.data.most]


def samples(task: Diffusion) -> Figure:
    """Captions from top to bottom, guidance from left to right, in each row the same noise."""
    texts = captions(task)
    guided = GUIDANCE if task.drop_caption else (1.0,)
    figure, axes = rows(len(texts), len(guided), *task.data.size)
    for number, (row, text) in enumerate(zip(axes, texts, strict=True)):
        for axis, guidance in zip(row, guided, strict=True):
            drawn = task.sample(task.caption(text), [derive(0, "drawn")], guidance=guidance)
            title = "" if number else f"guidance {guidance:g}"
            show(axis, task.data.pictures(drawn)[0], title)
        row[0].set_ylabel(f'"{text}"', fontsize=TITLE)
    without = "; at 0 the caption is not read" if 0 in guided else ""
    entitle(figure, f"Images drawn for captions (left), from the same noise{without}")
    return figure


def denoising(task: Diffusion) -> Figure:
    """The noisy images of some steps of one sample, and the result."""
    text, path = captions(task)[-1], list[Tensor]()
    drawn = task.sample(task.caption(text), [derive(0, "drawn")], path=path)
    count = min(SHOWN, len(path))
    numbers = [round(n * len(path) / count) for n in range(count)]
    figure, axes = rows(1, count + 1, *task.data.size)
    for axis, number in zip(axes[0], numbers, strict=False):
        title = "noise" if number == 0 else f"after step {number}"
        show(axis, task.data.pictures(path[number])[0], title)
    show(axes[0][-1], task.data.pictures(drawn)[0], f"after step {len(path)}")
    entitle(figure, f'From noise to an image of "{text}"')
    return figure


def inpainting(task: Diffusion) -> Figure:
    """A validation image, and its right half drawn anew for several captions."""
    known = task.data.originals("val", torch.tensor([0]))
    mask = (torch.arange(known.shape[2]) >= known.shape[2] // 2).expand_as(known)
    texts = [task.data.reference("val", 0), *captions(task)]
    figure, axes = rows(1, len(texts) + 1, *task.data.size)
    show(axes[0][0], known[0], f'validation image "{texts[0]}"')
    for axis, text in zip(axes[0][1:], texts, strict=True):
        drawn = filled(task, task.caption(text), [derive(0, "drawn")], known, mask)
        show(axis, drawn[0], f'anew for "{text}"')
        axis.axvline(known.shape[2] // 2 - 0.5, color="#ff5555", linewidth=1)
    entitle(figure, "In-painting: what is right of the line is drawn anew, the left half is kept")
    return figure


def map_drawer(task: Diffusion, example: dict[str, Any]) -> Callable[[Map, Sequence[int]], Figure]:
    """Draws a layer, a row for each head: of the caption's encoder, tokens by tokens; of the
    image's blocks, how much each patch attends to every token of time and caption, and how much
    the patches are attended to, on average over all of them."""
    model, image = task.model, task.prepared(example)["images"]
    labels = ["time", "BOS", *example["target_labels"][:-1]]
    tokens = model.condition.tokens

    def figure(one: Map, heads: Sequence[int]) -> Figure:
        title = f"layer {one.layer} of {one.layers}"
        if one.kind == "text":
            return words(
                one, heads, labels[1:], f"Attention between the words of a caption: {title}"
            )
        found = [heat(one.weights[head - 1]) for head in heads]
        figure, axes = rows(len(heads), 1 + len(found[0]), *task.data.size)
        norm = scale(max(float(values.max()) for row in found for values in row.values()))
        for row, head, heats in zip(axes, heads, found, strict=True):
            show(row[0], task.data.pictures(image)[0], "what the model reads")
            row[0].set_ylabel(f"head {head}", fontsize=TITLE)
            for axis, (name, values) in zip(row[1:], heats.items(), strict=True):
                cells = rearrange(values, "(y x) -> y x", y=model.grid[0])
                shown = axis.imshow(cells, norm=norm, interpolation="nearest")
                axis.set(xticks=[], yticks=[])
                axis.set_title(name, fontsize=TITLE)
        entitle(figure, f"Where the patches of the image look: {title}")
        colour_bar(figure, shown, list(figure.axes))
        return figure

    def heat(weights: Tensor) -> dict[str, Tensor]:
        """Titles, and values for each patch. weights: i j of a head."""
        patches = model.grid[0] * model.grid[1]
        weights = weights[-patches:]
        found = {}
        if weights.shape[1] != patches:  # with, or only, the tokens of time and caption
            found = {
                f"to {name if place < 2 else repr(name)}": weights[:, place]
                for place, name in enumerate(labels)
            }
        if weights.shape[1] != tokens:
            found["of all, to each patch"] = weights[:, -patches:].mean(0)
        return found

    return figure


def words(one: Map, heads: Sequence[int], labels: Sequence[str], title: str) -> Figure:
    count = len(labels)
    panels = [
        Panel(
            f"head {head}",
            one.weights[head - 1, :count, :count],
            labels,
            labels,
            one.allowed[:count, :count],
        )
        for head in heads
    ]
    top = max(float(panel.weights.max()) for panel in panels)
    return draw_panels(panels, title, top, query="word", key="attended word")


def reconstructions(task: Autoencoding) -> Figure:
    """Validation images, and below each what is left of it."""
    count = min(SHOWN, task.data.length("val"))
    known = task.data.originals("val", torch.arange(count))
    figure, axes = rows(2, count, *task.data.size)
    for row, pictures, name in zip(
        axes, (known, task.reconstructed(known)), ("image", "from its latent"), strict=True
    ):
        row[0].set_ylabel(name, fontsize=TITLE)
        for axis, picture in zip(row, pictures, strict=True):
            show(axis, picture, "")
    cells = math.prod(task.data.size) // task.model.reduction**2
    entitle(
        figure,
        f"Validation images, and what the autoencoder makes of their latents:"
        f" {cells * task.model.latent} numbers for {math.prod(task.data.size)} pixels",
    )
    return figure


def show(axis: Axes, picture: Tensor, title: str) -> None:
    axis.imshow(picture, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
    axis.set(xticks=[], yticks=[])
    axis.set_title(title, fontsize=TITLE)
