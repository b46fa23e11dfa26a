"""The coordinate check: how far activations move from their initial values in the first steps.

Yang et al. 2022, appendix D.1, https://arxiv.org/abs/2203.03466. If a rate transfers to other
widths or depths, the distances do not depend on them: their slopes are 0.
"""

import math
from collections.abc import Sequence
from statistics import linear_regression

import lightning.pytorch as L
import torch
from omegaconf import DictConfig
from torch import Tensor, nn

import ablate.training.quiet  # noqa: F401
from ablate.data import Batch
from ablate.data.document_rows import documents
from ablate.errors import UserError
from ablate.model.base import outputs
from ablate.model.layers.block import Block, Sublayer
from ablate.task import Task
from ablate.task.accumulation import total
from ablate.task.optimizing import optimizer_of
from ablate.training.average import by_optimizer
from ablate.training.build import build, build_data, make_task

Distances = dict[str, list[float]]


def distances(cfg: DictConfig, steps: int) -> Distances:
    """The mean absolute change of the activations of each kind after 1, 2, ... steps at the rate
    optimizer.lr: outputs of the sublayers of the last block by name, "stream" behind it, and
    "output" of the model. All steps are on one batch, and it is measured without dropout."""
    data = build_data(cfg)
    task = make_task(cfg, data, build(cfg, data))
    task.trainer = L.Trainer(accelerator="cpu", devices=1, logger=False, barebones=True)
    optimizer = optimizer_of(task)
    if by_optimizer(task):
        optimizer.train()  # type: ignore[attr-defined]
    batch = task.prepared(next(iter(data.train_dataloader())))
    start = activations(task, batch)
    found: Distances = {kind: [] for kind in start}
    for step in range(steps):
        task.draws.keys = task.draws.of_batch(task.seed, step)
        optimizer.zero_grad()
        total(task.terms(batch)).backward()
        optimizer.step()
        for kind, value in activations(task, batch).items():
            found[kind].append(float((value - start[kind]).abs().mean()))
    return found


@torch.no_grad()
def activations(task: Task, batch: Batch) -> dict[str, Tensor]:
    """The outputs of the kinds of layers for a batch."""
    found: dict[str, Tensor] = {}
    kinds: dict[str, nn.Module] = {
        name.rpartition(".")[2]: module.function
        for name, module in task.model.named_modules()
        if isinstance(module, Sublayer)
    }
    blocks = [module for module in task.model.modules() if isinstance(module, Block)]
    kinds |= {"stream": blocks[-1]} if blocks else {}
    hooks = [
        module.register_forward_hook(lambda *made, kind=kind: found.update({kind: made[2]}))
        for kind, module in kinds.items()
    ]
    try:
        found["output"] = outputs(task.model.eval()(*task.inputs(batch), **documents(batch)))[0]
    finally:
        task.model.train()
        for hook in hooks:
            hook.remove()
    return found


def slopes(sizes: Sequence[int], measured: Sequence[Distances]) -> Distances:
    """The power of the size that the distances go by, for each kind after 1, 2, ... steps."""
    return {
        kind: [
            _slope(kind, sizes, [each[kind][step] for each in measured])
            for step in range(len(measured[0][kind]))
        ]
        for kind in measured[0]
    }


def _slope(kind: str, sizes: Sequence[int], values: Sequence[float]) -> float:
    if not all(0 < value < math.inf for value in values):
        raise UserError(
            f"the {kind} changes by {', '.join(f'{value:g}' for value in values)}, which has no"
            " slope; change optimizer.lr"
        )
    return linear_regression(*(list(map(math.log, each)) for each in (sizes, values))).slope
