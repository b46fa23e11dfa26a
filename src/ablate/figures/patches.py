"""Attention maps of a ViT: the weights of the patches at their positions on the image."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from einops import rearrange, reduce, repeat
from torch import Tensor, nn
from torch.nn import functional as F

from ablate.data.images import Images
from ablate.figures.maps import Map
from ablate.figures.panels import TITLE, color_bar, entitle, grid, scale

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def patch_drawer(
    image: Tensor, maps: Sequence[Map], patches: nn.Conv2d, *, class_token: bool
) -> Callable[[Map, Sequence[int]], Figure]:
    """Draws a layer: the row of its class token, or the mean of the rows without one.

    image: y x c. patches: the map whose outputs attend to each other.
    """
    extra = 1 if class_token else 0
    rows = [map_.weights[:, 0] if extra else map_.weights.mean(1) for map_ in maps]
    top = max(float(row[:, extra:].max()) for row in rows)
    who = "the class token attends" if extra else "the patches attend, on average over queries"

    def figure(map_: Map, heads: Sequence[int]) -> Figure:
        named = {}
        for head in heads:
            row = rows[map_.layer - 1][head - 1]
            itself = f" ({float(row[0]):.0%} on itself)" if extra else ""
            named[f"head {head}{itself}"] = row[extra:]
        title = f"{who}: layer {map_.layer} of {map_.layers}"
        return draw_patches(named, image, patches, title, top)

    return figure


def unnormalized(data: Images, image: Tensor) -> Tensor:
    """Undo the normalization: c y x -> y x c between 0 and 1."""
    mean, std = (rearrange(t.float(), "c -> c 1 1") for t in (data.mean, data.std))
    image = (image * std + mean).clamp(0, 1)
    if len(image) != 3:
        image = reduce(image, "c y x -> 1 y x", "mean").expand(3, -1, -1)
    return rearrange(image, "c y x -> y x c")


def draw_patches(
    heads: dict[str, Tensor], image: Tensor, patches: nn.Conv2d, title: str, top: float
) -> Figure:
    """The image, then for each head the weights of the patches at their positions.

    heads: title -> weight of each patch, row by row. image: y x c.
    """
    figure, axes = grid(len(heads) + 1, width=2.9, height=2.9)
    axes[0].imshow(image)
    axes[0].set_title("the image", fontsize=TITLE)
    for axis, (name, weights) in zip(axes[1:], heads.items(), strict=True):
        heat = spread(weights, patches, image.shape[0], image.shape[1])
        shown = axis.imshow(heat, norm=scale(top), interpolation="nearest")
        axis.set_title(name, fontsize=TITLE)
    for axis in axes:
        axis.set(xticks=[], yticks=[])
    entitle(figure, title)
    color_bar(figure, shown, axes[1:])
    return figure


def spread(weights: Tensor, patches: nn.Conv2d, height: int, width: int) -> Tensor:
    """Weights of the patches, row by row -> y x: the mean weight of the patches over each pixel."""
    side, stride = patches.kernel_size, patches.stride
    both = torch.stack([weights, torch.ones_like(weights)])  # counted, to take the mean
    filled = repeat(both, "n j -> n k j", k=math.prod(side))
    total, count = F.fold(filled, (height, width), kernel_size=side, stride=stride)[:, 0]
    return total / count
