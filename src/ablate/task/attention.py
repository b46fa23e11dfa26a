"""The attention maps of a task's model, and their figures: a PNG for each layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ablate.data import Batch
from ablate.data.document_rows import documents
from ablate.errors import UserError
from ablate.figures.maps import ALIGNMENT, Map
from ablate.figures.panels import chosen, entitle
from ablate.figures.save import save
from ablate.model.base import Seq2Seq
from ablate.model.layers.multi_head import recording
from ablate.model.mask import Mask
from ablate.model.mask.none import NoMask
from ablate.task import Task

RAW = "attention.npz"


@torch.no_grad()
def attention_maps(task: Task, example: Batch | dict[str, Any]) -> list[Map]:
    """The maps of all layers in order of application, kind by kind. example: a batch of size 1."""
    model = task.model
    was_training = model.training
    first = next(model.parameters())
    device, dtype = first.device, first.dtype
    layers = {name: m for name, m in model.named_modules() if hasattr(m, "recorded")}
    ready = task.prepared(example)  # for which the model itself may write
    within = {name: tensor.to(device) for name, tensor in documents(ready).items()}
    with recording(model.eval()) as recorded:
        inputs = [tensor.to(device) for tensor in task.inputs(ready)]
        model(*(x.to(dtype) if x.is_floating_point() else x for x in inputs), **within)
    model.train(was_training)
    by_kind: dict[str, list[tuple[Tensor, Mask]]] = {}
    for (name, module), seen in zip(layers.items(), recorded, strict=True):
        kind = model.map_kind(name, module)
        mask = getattr(module, "mask", NoMask(causal=False))
        if kind == "cross" and isinstance(model, Seq2Seq):
            sources, mask = task.inputs(example)[0].shape[1], NoMask(causal=False)
            seen = [model.to_source(weights, sources) for weights in seen]
        # A shared layer records one map per application; a decoder step by step, one row per step.
        rows = example["target_in"].shape[1] if kind == "cross" else seen[0].shape[2]
        weights = torch.cat([part[0].float().cpu() for part in seen], dim=1)
        for application in weights.split(rows, dim=1):
            by_kind.setdefault(kind, []).append((application, mask))
    return [
        Map(kind, number, len(maps), weights, allowed(mask, *weights.shape[1:]))
        for kind, maps in by_kind.items()
        for number, (weights, mask) in enumerate(maps, 1)
    ]


def allowed(mask: Mask, queries: int, keys: int) -> Tensor:
    """i j, True if the mask lets query i attend to key j."""
    return mask.allowed(torch.arange(queries), torch.arange(keys)).expand(queries, keys)


def alignments(task: Task, examples: Sequence[dict[str, Any]], maps: Sequence[Map]) -> list[Map]:
    """The single map of each example; none if the model, whose `maps` are those of the first, has
    others too."""
    if all(m.name != ALIGNMENT for m in maps):
        return []
    every = (attention_maps(task, example) for example in examples)
    return [next(m for m in maps if m.name == ALIGNMENT) for maps in every]


def attention_figures(
    task: Task,
    folder: Path,
    *,
    examples: Sequence[dict[str, Any]] | None = None,
    kinds: Sequence[str] | None = None,
    layer: int | None = None,
    head: int | None = None,
    caption: str = "the target is the reference",
    run: str = "",
    raw: bool = False,
) -> list[Path]:
    """Draw the attention weights of each head in an example: a PNG per layer.

    examples: batches of size 1, by default of validation (`Data.drawn`); several are drawn if every
    layer has one head. kinds: only these of `Map.kind`. layer, head: that one only, counted from 1;
    UserError if it does not exist. caption: the source of the targets of pairs. run: a line above
    each figure. raw: write `RAW` as well. For an LSTM language model, which has no attention, the
    gates are drawn; other models without attention yield no path.
    """
    presenter = task.presenter(task)
    if examples is None:
        examples = [task.data.example(index) for index in task.data.drawn(presenter.drawn_examples)]
    maps = attention_maps(task, examples[0])
    maps = [m for m in maps if kinds is None or m.kind in kinds]
    if raw and not maps:
        raise UserError("--raw: this model has no attention weights")
    if not maps:
        return [] if kinds is not None else task.model.figures(examples[0], folder, layer)
    numbers = chosen("layer", layer, max(m.layer for m in maps))
    chosen("head", head, max(len(m.weights) for m in maps))
    draw = presenter.drawer(examples, maps, caption)
    heads = {m.name: range(1, len(m.weights) + 1) for m in maps if m.layer in numbers}
    if head is not None:  # layers may have fewer
        heads = {
            name: range(head, head + 1) for name, of_layer in heads.items() if head in of_layer
        }
    paths = []
    for m in maps:
        if m.name in heads:
            figure = draw(m, heads[m.name])
            if run:
                entitle(figure, run)
            paths.append(save(figure, folder / f"{m.name}.png"))
    return [*paths, write_raw(folder / RAW, maps, heads, examples[0])] if raw else paths


def write_raw(
    path: Path, maps: Sequence[Map], heads: Mapping[str, Sequence[int]], example: dict[str, Any]
) -> Path:
    """Write the weights of the heads with these numbers, from 1, under the names of the maps (h i
    j), and the example's `labels`, if it has any, as NumPy's .npz."""
    held = {
        m.name: m.weights[[n - 1 for n in heads[m.name]]].numpy() for m in maps if m.name in heads
    }
    if "labels" in example:
        held["labels"] = np.array(example["labels"])
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, allow_pickle=False, **held)
    return path
