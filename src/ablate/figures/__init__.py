"""What a run looks like: attention maps of validation examples, as PNGs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ablate.data.pairs import Pairs
from ablate.errors import UserError
from ablate.figures.curves import draw_curves
from ablate.figures.maps import Map, attention_maps
from ablate.figures.pairs import pair_drawer
from ablate.figures.panels import save
from ablate.figures.patches import patch_drawer
from ablate.figures.tokens import token_drawer
from ablate.model.forecaster import Forecaster
from ablate.model.vit import ViT
from ablate.task import Task

__all__ = ["attention_figures", "draw_curves"]

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    Drawer = Callable[[Map, Sequence[int]], Figure]

FEW = 4  # examples drawn beside each other where there is one head


def attention_figures(
    task: Task,
    folder: Path,
    *,
    examples: Sequence[dict[str, Any]] | None = None,
    kinds: Sequence[str] | None = None,
    layer: int | None = None,
    head: int | None = None,
    caption: str = "the target is the reference",
) -> list[Path]:
    """Draw what each head attends to in an example: a PNG per layer.

    examples: batches of size 1, by default the first of validation; several are drawn where every
    layer has one head. kinds: only these of `Map.kind`. layer, head: that one only, counted from 1;
    UserError if there is no such one. caption: what the targets of pairs are. No path for a model
    without our attention.
    """
    if examples is None:
        count = min(FEW, task.data.length("val")) if isinstance(task.data, Pairs) else 1
        examples = [task.data.example(index) for index in range(count)]
    maps = attention_maps(task, examples[0])
    maps = [one for one in maps if kinds is None or one.kind in kinds]
    if not maps:
        return []
    numbers = _chosen("layer", layer, max(one.layer for one in maps))
    heads = _chosen("head", head, len(maps[0].weights))
    draw: Drawer
    if isinstance(task.model, ViT):
        draw = patch_drawer(task, examples[0], maps)
    elif isinstance(task.data, Pairs):
        draw = pair_drawer(task, examples, maps, caption)
    else:
        item = "time step" if isinstance(task.model, Forecaster) else "token"
        draw = token_drawer(examples[0], maps, item)
    return [
        save(draw(one, heads), folder / f"{one.name}.png") for one in maps if one.layer in numbers
    ]


def _chosen(what: str, number: int | None, count: int) -> Sequence[int]:
    if number is None:
        return range(1, count + 1)
    if not 1 <= number <= count:
        raise UserError(f"{what} {number}: this model has {what}s 1 to {count}")
    return [number]
