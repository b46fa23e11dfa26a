"""The optimizer of a task: its groups of parameters, and its schedule."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.optim.lr_scheduler import LambdaLR

from ablate.model.base import ROLES

MakeOptimizer = Callable[[list[dict[str, Any]]], torch.optim.Optimizer]
Schedule = Callable[[int, int], float]


def groups_of(task: Any) -> list[dict[str, Any]]:
    """The trained parameters, with weight decay and without, as in nanoGPT: all but biases and
    norms have it. An optimizer that `takes_roles` gets a group for each role, with the key "role";
    a role with a `rate_factor` also has its own group."""
    make = task.make_optimizer
    apart = getattr(getattr(make, "func", None), "takes_roles", False)
    roles, groups = task.model.roles(), dict[str, dict[str, Any]]()
    factors = task.model.rate_factors()
    for name, parameter in task.model.named_parameters():
        if parameter.requires_grad:
            role = roles[name]
            key = role if apart or role == "vector" or role in factors else "decayed"
            groups.setdefault(key, {"params": []})["params"].append(parameter)
    if "vector" in groups:
        groups["vector"]["weight_decay"] = 0.0
    for role, group in groups.items():
        if apart:
            group["role"] = role
        if role in factors:
            group["lr"] = factors[role] * make.keywords["lr"]
    return [groups[key] for key in ("decayed", *ROLES) if key in groups]


def scheduled(optimizer: torch.optim.Optimizer, schedule: Schedule, total: int) -> dict[str, Any]:
    """An optimizer and its schedule, per step, as Lightning takes them."""
    # A fused optimizer would unscale float16 gradients in its step; Lightning has to do so before,
    # to clip them.
    optimizer._step_supports_amp_scaling = False  # type: ignore[attr-defined]
    scheduler = LambdaLR(optimizer, partial(_factor, schedule, total))
    return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def _factor(schedule: Schedule, total: int, step: int) -> float:
    return schedule(step, total)
