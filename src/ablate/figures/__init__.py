"""Figures of a run: attention maps of validation examples, as PNGs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ablate.figures.curves import draw_curves
from ablate.figures.maps import attention_maps
from ablate.figures.panels import chosen
from ablate.figures.save import save
from ablate.task import Task

__all__ = ["attention_figures", "draw_curves"]


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
    """Draw the attention weights of each head in an example: a PNG per layer.

    examples: batches of size 1, by default the first of validation; several are drawn if every
    layer has one head. kinds: only these of `Map.kind`. layer, head: that one only, counted from 1;
    UserError if it does not exist. caption: what the targets of pairs are. For an LSTM language
    model, which has no attention, the gates are drawn; other models without attention yield no
    path.
    """
    if examples is None:
        count = min(task.drawn_examples, task.data.length("val"))
        examples = [task.data.example(index) for index in range(count)]
    maps = attention_maps(task, examples[0])
    maps = [one for one in maps if kinds is None or one.kind in kinds]
    if not maps:
        return [] if kinds is not None else task.model.figures(examples[0], folder, layer)
    numbers = chosen("layer", layer, max(one.layer for one in maps))
    chosen("head", head, max(len(one.weights) for one in maps))
    draw = task.drawer(examples, maps, caption)
    heads = {one.name: range(1, len(one.weights) + 1) for one in maps if one.layer in numbers}
    if head is not None:  # layers may have fewer
        heads = {name: range(head, head + 1) for name, own in heads.items() if head in own}
    return [
        save(draw(one, heads[one.name]), folder / f"{one.name}.png")
        for one in maps
        if one.name in heads
    ]
