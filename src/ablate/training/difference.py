"""The effect of a change on a model: its parameters, FLOPs, cache and initial outputs."""

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig
from torch import Tensor, nn

from ablate.config.keys import changed_keys
from ablate.config.saved import names_file
from ablate.data import Data
from ablate.data.document_rows import documents
from ablate.model.base import outputs
from ablate.model.layers.stack import kernels
from ablate.training.build import (
    count_cache,
    count_flops,
    initialized,
    make_task,
    model_on_meta,
    require_memory,
)
from ablate.training.cache import CacheBytes
from ablate.training.record import count_parameters
from ablate.training.same_model import DataSets, SameModel


@dataclass
class Side:
    """One of the two compositions, with its built model."""

    model: nn.Module
    flops: int
    cache: CacheBytes | None
    inputs: tuple[Tensor, ...]
    outputs: list[Tensor]


@dataclass
class Difference:
    """The differences between two compositions.

    keys: config key -> the two values. only_first, only_second, other_values: names of parameters.
    output: largest absolute difference of the outputs on the first validation example at
    initialization; None if they have different shapes or read different data. none: whether
    nothing changed but the spelling (see SameModel); None: the models are too large to tell.
    """

    keys: dict[str, tuple[Any, Any]]
    parameters: tuple[int, int]
    flops: tuple[int, int]
    cache: tuple[CacheBytes | None, CacheBytes | None]
    kernels: tuple[list[str], list[str]]
    only_first: list[str]
    only_second: list[str]
    other_values: list[str]
    output: float | None
    none: bool | None


def side(config: DictConfig, data: Data) -> Side:
    on_meta = model_on_meta(config, data)
    require_memory(config, on_meta)
    model = initialized(config, data).eval()
    task = make_task(config, data, model)
    batch = task.prepared(data.example())
    inputs, within = task.inputs(batch), documents(batch)
    with torch.no_grad():
        computed = outputs(model(*inputs, **within))
    cache, flops = count_cache(task, on_meta), count_flops(config, task, on_meta)
    return Side(model, flops, cache, inputs, computed)


def difference(
    first: DictConfig, second: DictConfig, files: Sequence[Path | None] = (None, None)
) -> Difference:
    """Build both compositions and compare them. files: that they were read from."""
    sets, sides = DataSets(), []
    for config, file in zip((first, second), files, strict=True):
        with nullcontext() if file is None else names_file(file):
            sides.append(side(config, sets(config)))
    a, b = sides
    of_first, of_second = (dict(s.model.named_parameters()) for s in (a, b))
    shared = [name for name in of_first if name in of_second]
    comparable = same_inputs(a, b) and shapes(a.outputs) == shapes(b.outputs)
    return Difference(
        keys=changed_keys(first, second),
        parameters=(count_parameters(a.model)["total"], count_parameters(b.model)["total"]),
        flops=(a.flops, b.flops),
        cache=(a.cache, b.cache),
        kernels=tuple(sorted(set(kernels(s.model).values())) for s in (a, b)),  # type: ignore[arg-type]
        only_first=[name for name in of_first if name not in of_second],
        only_second=[name for name in of_second if name not in of_first],
        other_values=[name for name in shared if not torch.equal(of_first[name], of_second[name])],
        output=largest_gap(a, b) if comparable else None,
        none=SameModel(first, sets)(second, b.model),
    )


def same_inputs(a: Side, b: Side) -> bool:
    """Whether both read the same example, which other data or another task may have changed."""
    return shapes(a.inputs) == shapes(b.inputs) and all(map(torch.equal, a.inputs, b.inputs))


def shapes(tensors: Iterable[Tensor]) -> list[torch.Size]:
    return [tensor.shape for tensor in tensors]


def largest_gap(a: Side, b: Side) -> float:
    return max((x - y).abs().max().item() for x, y in zip(a.outputs, b.outputs, strict=True))
