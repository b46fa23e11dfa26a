"""The load of the experts of a task's model, and its figure."""

from itertools import islice
from pathlib import Path

import torch
from torch import Tensor

from ablate.data.document_rows import documents
from ablate.figures.experts import draw_load
from ablate.figures.save import save
from ablate.model.ffn.moe import MixtureOfExperts, real
from ablate.model.layers.layer import Context
from ablate.task import Task

BATCHES = 8


@torch.no_grad()
def expert_loads(task: Task) -> list[Tensor]:
    """How often each expert is chosen, of each layer from the first to the last, by the tokens of
    the first batches of validation that are not padding."""
    model = task.model
    layers = [part for part in model.modules() if isinstance(part, MixtureOfExperts)]
    loads = {layer: torch.zeros(len(layer.experts)) for layer in layers}

    def count(layer: MixtureOfExperts, inputs: tuple[Tensor, Context]) -> None:
        chosen = layer.router(inputs[0]).topk(layer.top_k).indices[real(*inputs)]
        loads[layer] += chosen.flatten().bincount(minlength=len(layer.experts)).cpu()

    hooks = [layer.register_forward_pre_hook(count) for layer in layers]
    was_training, device = model.training, next(model.parameters()).device
    try:
        model.eval()
        for batch in islice(task.data.val_dataloader() if layers else (), BATCHES):
            ready = task.prepared(batch)
            within = {name: tensor.to(device) for name, tensor in documents(ready).items()}
            model(*(tensor.to(device) for tensor in task.inputs(ready)), **within)
    finally:
        model.train(was_training)
        for hook in hooks:
            hook.remove()
    return list(loads.values())


def expert_figures(task: Task, folder: Path) -> list[Path]:
    """Draw the load of the experts; no path without any."""
    loads = expert_loads(task)
    shares = [load / load.sum() for load in loads]
    return [save(draw_load(shares), folder / "experts.png")] if shares else []
