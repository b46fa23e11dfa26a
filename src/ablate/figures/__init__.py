"""Figures of a run: attention maps of validation examples, as PNGs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ablate.data.digit_strings import DigitStrings
from ablate.data.graph import Graphs
from ablate.data.pairs import Pairs
from ablate.data.targets import Targets
from ablate.errors import UserError
from ablate.figures.captions import caption_drawer
from ablate.figures.curves import draw_curves
from ablate.figures.gates import gate_figures
from ablate.figures.graph import graph_drawer
from ablate.figures.maps import Map, attention_maps
from ablate.figures.pairs import pair_drawer
from ablate.figures.patches import patch_drawer
from ablate.figures.save import save
from ablate.figures.tokens import token_drawer
from ablate.model.base import Forecaster
from ablate.model.rnn_lm import RNNLM
from ablate.model.vit import ViT
from ablate.task import Task

__all__ = ["attention_figures", "draw_curves"]

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    Drawer = Callable[[Map, Sequence[int]], Figure]

FEW = 4  # examples drawn side by side if there is one head


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
        count = min(FEW, task.data.length("val")) if isinstance(task.data, Targets) else 1
        examples = [task.data.example(index) for index in range(count)]
    maps = attention_maps(task, examples[0])
    maps = [one for one in maps if kinds is None or one.kind in kinds]
    if not maps:
        if kinds is not None or not isinstance(task.model, RNNLM):
            return []
        numbers = _chosen("layer", layer, len(task.model.recurrent.layers))
        return gate_figures(task.model, examples[0], folder, numbers)
    numbers = _chosen("layer", layer, max(one.layer for one in maps))
    _chosen("head", head, max(len(one.weights) for one in maps))
    draw: Drawer
    if isinstance(task.model, ViT):
        draw = patch_drawer(task, examples[0], maps)
    elif isinstance(task.data, Graphs):
        draw = graph_drawer(task, examples[0], maps)
    elif isinstance(task.data, DigitStrings):
        draw = caption_drawer(task, examples, caption)
    elif isinstance(task.data, Pairs):
        draw = pair_drawer(task, examples, maps, caption)
    else:
        item = "time step" if isinstance(task.model, Forecaster) else "token"
        draw = token_drawer(examples[0], maps, item)
    heads = {one.name: range(1, len(one.weights) + 1) for one in maps if one.layer in numbers}
    if head is not None:  # layers may have fewer
        heads = {name: range(head, head + 1) for name, own in heads.items() if head in own}
    return [
        save(draw(one, heads[one.name]), folder / f"{one.name}.png")
        for one in maps
        if one.name in heads
    ]


def _chosen(what: str, number: int | None, count: int) -> Sequence[int]:
    if number is None:
        return range(1, count + 1)
    if not 1 <= number <= count:
        raise UserError(f"{what} {number}: this model has {what}s 1 to {count}")
    return [number]
