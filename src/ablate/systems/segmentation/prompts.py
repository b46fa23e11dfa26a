"""Prompts of a segmentation: points, x then y in pixels, each with a label; a box is two corners.

Kirillov et al. 2023, "Segment anything", section 3, https://arxiv.org/abs/2304.02643. The first
prompt is always two points: the corners of a box, or a click and padding, as there.
"""

import torch
from torch import Tensor
from torch.nn.functional import pad

BACKGROUND, OBJECT, FIRST_CORNER, LAST_CORNER = range(4)
PADDING = -1  # not a point
NUMBERS = 2**26  # of float32 at a time
FIRST = 2  # points of the first prompt; every click after it is one more


def depths(regions: Tensor) -> Tensor:
    """b y x, True inside -> the squared distance of each pixel to the nearest one outside, the
    border of the image included; 0 outside.

    The exact Euclidean distance: the least over a row, then over a column (Felzenszwalb and
    Huttenlocher 2012, https://doi.org/10.4086/toc.2012.v008a019, section 2.2, without envelopes).
    """
    inside = pad(regions, (1, 1, 1, 1)).float()
    nearest = inside * sum(inside.shape[1:]) ** 2
    for _ in ("along rows", "along columns"):
        positions = torch.arange(nearest.shape[2], device=regions.device)
        steps = (positions - positions[:, None]).square().float()
        parts = nearest.flatten(0, 1).split(max(1, NUMBERS // steps.numel()))
        least = torch.cat([(rows[:, None] + steps).amin(-1) for rows in parts])
        nearest = least.view_as(nearest).mT
    return nearest[:, 1:-1, 1:-1]


def largest(values: Tensor) -> Tensor:
    """b y x -> the pixel with the largest value, the first of equal ones: b 2, x then y."""
    at = values.flatten(1).argmax(1)
    return torch.stack([at % values.shape[2], at // values.shape[2]], dim=1)


def centers(masks: Tensor) -> Tensor:
    """b y x -> the pixel of each mask that is farthest from its boundary: b 2."""
    return largest(depths(masks))


def boxes(masks: Tensor) -> Tensor:
    """b y x, none of them empty -> the first and the last corner of each, inclusive: b 2 2."""
    columns, rows = masks.any(1), masks.any(2)
    first = [side.float().argmax(1) for side in (columns, rows)]
    last = [side.shape[1] - 1 - side.flip(1).float().argmax(1) for side in (columns, rows)]
    return torch.stack([torch.stack(corner, dim=1) for corner in (first, last)], dim=1)


def first_click(points: Tensor) -> tuple[Tensor, Tensor]:
    """A click on each object, b 2 -> the first prompt: points b 2 2, labels b 2."""
    labels = torch.tensor([OBJECT, PADDING], device=points.device).expand(len(points), -1)
    return torch.stack([points, torch.zeros_like(points)], dim=1), labels


def box_prompt(masks: Tensor) -> tuple[Tensor, Tensor]:
    """The box around each mask, b y x, as the first prompt: points b 2 2, labels b 2."""
    labels = torch.tensor([FIRST_CORNER, LAST_CORNER], device=masks.device)
    return boxes(masks), labels.expand(len(masks), -1)


def correction(predicted: Tensor, masks: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """The next click: the wrong pixel with the largest of `values`, which are positive there.

    predicted, masks, values: b y x -> point b 2, label b: OBJECT for a missed part of the object,
    BACKGROUND for a part beyond it, PADDING if no pixel is wrong.
    """
    wrong = predicted != masks
    point = largest(values * wrong)
    missed = masks[torch.arange(len(masks), device=masks.device), point[:, 1], point[:, 0]]
    return point, torch.where(wrong.flatten(1).any(1), missed.long(), PADDING)


def error_depths(predicted: Tensor, masks: Tensor) -> Tensor:
    """The depth of every pixel in the missed part, or in the part beyond the object: b y x."""
    return depths(masks & ~predicted) + depths(predicted & ~masks)
