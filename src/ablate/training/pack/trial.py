"""Test before training, on a batch of each, whether tasks can be trained as one."""

from collections.abc import Sequence
from itertools import islice

import lightning.pytorch as L
import torch
from omegaconf import DictConfig

from ablate.errors import UserError
from ablate.task import Task
from ablate.training.build import build, build_data, make_task
from ablate.training.pack.batched import losses, stack
from ablate.training.preflight import accelerator

PRECISIONS = "32-true", "64-true"
BATCHES = 4  # of each seed, whose shapes are compared
LOSS, GRADIENT = 1e-4, 1e-3  # relative differences too large to be rounding


def device_of(cfg: DictConfig) -> str:
    """cuda, mps or cpu."""
    return accelerator(cfg.trainer.accelerator)[0]


def at_once(cfg: DictConfig) -> bool:
    """Whether the seeds of a pack are computed at once, else in turns. auto: on a GPU only, since a
    CPU gains nothing (docs/benchmarks.md)."""
    if cfg.study.batched == "auto":
        return device_of(cfg) != "cpu"
    return bool(cfg.study.batched)


def require_settings(cfg: DictConfig) -> None:
    """Raise UserError for settings that no pack supports."""
    trainer = cfg.trainer
    if trainer.devices != 1 or trainer.num_nodes != 1 or trainer.strategy != "auto":
        raise UserError("study.pack: a pack is trained on one device; use trainer=cpu or gpu")
    if trainer.precision not in PRECISIONS:
        raise UserError(
            f"study.pack: trainer.precision={trainer.precision} is not tested in packs; use"
            f" {' or '.join(PRECISIONS)}"
        )
    if "debug" in cfg:
        raise UserError("study.pack: debug=overfit and debug=profile look at one run; use pack=1")
    if cfg.get("compile"):
        raise UserError("study.pack: compile=true is not tested in packs; use compile=false")
    if trainer.accumulate_grad_batches > 1 and at_once(cfg):
        raise UserError(
            "study.pack: trainer.accumulate_grad_batches above 1 cannot be computed at once; use"
            " study.batched=false"
        )


def refuse_pack(cfg: DictConfig, seeds: Sequence[int]) -> None:
    """Raise UserError if these seeds of a checked config cannot be trained as a pack."""
    require_settings(cfg)
    if not at_once(cfg):
        return
    tasks = []
    for seed in seeds[:2]:
        own = cfg.copy()
        own.seed = seed
        data = build_data(own)
        tasks.append(make_task(own, data, build(own, data)))
    require_batchable(tasks, device_of(cfg))


def require_batchable(tasks: Sequence[Task], device: str) -> None:
    """Raise UserError unless losses and gradients of the pack equal those of each task alone."""
    if reason := _reason(tasks, device):
        raise UserError(
            f"study.pack: these seeds cannot be computed at once: {reason}; use study.batched=false"
        )


def _reason(tasks: Sequence[Task], device: str) -> str | None:
    if type(tasks[0]).shown is not Task.shown:
        return "what it logs of its loss is a part of it"
    trainer = L.Trainer(
        accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
        enable_model_summary=False, enable_progress_bar=False,
    )  # fmt: skip
    first = []
    for task in tasks:
        task.trainer = trainer
        task.to(device).train()
        first.append(list(islice(task.data.train_dataloader(), BATCHES)))
    shapes = {tuple((name, x.shape) for name, x in b.items()) for own in first for b in own}
    if len(shapes) > 1:
        return "its batches differ in shape"
    batches = [{name: x.to(device) for name, x in own[0].items()} for own in first]
    weights = stack(tasks)
    try:
        packed = losses(tasks, weights, batches, 0)
        packed.sum().backward()
    except Exception as error:  # operations that vmap cannot batch
        return " ".join(str(error).split())[:200]
    for k, (task, batch) in enumerate(zip(tasks, batches, strict=True)):
        task.on_train_batch_start(batch, 0)
        alone = task.loss(batch)
        alone.backward()
        trained = {n: p.grad for n, p in task.named_parameters() if p.grad is not None}
        task.zero_grad()
        if not torch.allclose(packed[k], alone, rtol=LOSS, atol=LOSS):
            there, here = alone.item(), packed[k].item()
            return f"the loss would be {here:.6g}, and is {there:.6g} in a run by itself"
        for name, gradient in trained.items():
            found = weights[name].grad
            apart = (gradient if found is None else gradient - found[k]).norm()
            if apart > GRADIENT * gradient.norm() + 1e-7:
                return f"the gradient of {name} would differ from that of a run by itself"
    return None
