"""The attention weights of a model for one example."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ablate.data import Batch
from ablate.model.base import Seq2Seq
from ablate.model.layers.multi_head import recording
from ablate.model.mask import Mask
from ablate.model.mask.none import NoMask
from ablate.task import Task

ALIGNMENT = "alignment"  # the name of the single map of an RNN


@dataclass(frozen=True)
class Map:
    """The attention weights of the heads of a layer.

    kind: `Model.map_kind`. layer: its number among `layers` of that kind, from 1.
    weights: h i j.
    """

    kind: str
    layer: int
    layers: int
    weights: Tensor
    mask: Mask

    @property
    def name(self) -> str:
        """The name of its PNG."""
        if self.kind == "cross" and self.layers == len(self.weights) == 1:
            return ALIGNMENT
        return f"{self.kind}_layer_{self.layer:02}"

    @property
    def allowed(self) -> Tensor:
        """i j, True where the mask lets a query attend."""
        queries, keys = (torch.arange(count) for count in self.weights.shape[1:])
        return self.mask.allowed(queries, keys).expand(len(queries), len(keys))


@torch.no_grad()
def attention_maps(task: Task, example: Batch | dict[str, Any]) -> list[Map]:
    """The maps of all layers in order of application, kind by kind. example: a batch of size 1."""
    model = task.model
    was_training = model.training
    device = next(model.parameters()).device
    layers = {name: m for name, m in model.named_modules() if hasattr(m, "recorded")}
    inputs = task.inputs(task.prepared(example))  # for which the model itself may write
    with recording(model.eval()) as recorded:
        model(*(tensor.to(device) for tensor in inputs))
    model.train(was_training)
    found: dict[str, list[tuple[Tensor, Mask]]] = {}
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
            found.setdefault(kind, []).append((application, mask))
    return [
        Map(kind, number, len(maps), weights, mask)
        for kind, maps in found.items()
        for number, (weights, mask) in enumerate(maps, 1)
    ]
