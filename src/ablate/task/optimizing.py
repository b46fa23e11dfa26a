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
    norms have it. An optimizer that `takes_roles` gets a group for each role, with the key "role",
    and so does any with muP."""
    make, model = task.make_optimizer, task.model
    by_role = getattr(getattr(make, "func", None), "takes_roles", False)
    apart = by_role or model.width_ratio != 1 or model.depth_ratio != 1
    roles, groups = model.roles(), dict[str, dict[str, Any]]()
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            role = roles[name]
            key = role if apart or role == "vector" else "decayed"
            groups.setdefault(key, {"params": []})["params"].append(parameter)
    if "vector" in groups:
        groups["vector"]["weight_decay"] = 0.0
    if apart:
        for role, group in groups.items():
            group["role"] = role
    return [groups[key] for key in ("decayed", *ROLES) if key in groups]


def optimizer_of(task: Any) -> torch.optim.Optimizer:
    """The optimizer; with muP its settings, tuned at the base width and depth, are those of the
    model's (Dey et al. 2025, table 1 with alpha = 1, https://arxiv.org/abs/2505.01618)."""
    optimizer: torch.optim.Optimizer = task.make_optimizer(groups_of(task))
    optimizer.register_step_post_hook(lambda *_: task.model.after_step())
    width, depth = task.model.width_ratio, task.model.depth_ratio
    if width == depth == 1:
        return optimizer
    for group in optimizer.param_groups:
        if group["role"] == "matrix":
            factor = width ** _power(group)
            group["lr"] *= factor
            # Decoupled decay is times the rate: this keeps the share of a weight that decays in a
            # step (Wang and Aitchison 2024, https://arxiv.org/abs/2405.13698).
            group["weight_decay"] /= factor
        if "betas" in group and "eps" in group:  # Adam's, as gradients do
            group["eps"] *= width * depth
    return optimizer


def _power(group: dict[str, Any]) -> float:
    """Of the base width / width, in the rate of matrices that map the width to itself.

    The spectral norm of a step has to be the same at all widths (Yang et al. 2023,
    https://arxiv.org/abs/2310.17813). That of Adam and Lion, whose entries are of one size, grows
    with the width. That of Muon is one, times the factor of `adjust_lr_fn`: that of
    "match_rms_adamw" is the root of the width, others depend only on the ratio of the sides.
    """
    if "adjust_lr_fn" not in group:
        return 1.0
    return 0.5 if group["adjust_lr_fn"] == "match_rms_adamw" else 0.0


def scheduled(optimizer: torch.optim.Optimizer, schedule: Schedule, total: int) -> dict[str, Any]:
    """An optimizer and its schedule, per step, as Lightning takes them."""
    # A fused optimizer would unscale float16 gradients in its step; Lightning has to do so before,
    # to clip them.
    optimizer._step_supports_amp_scaling = False  # type: ignore[attr-defined]
    scheduler = LambdaLR(optimizer, partial(_factor, schedule, total))
    return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def _factor(schedule: Schedule, total: int, step: int) -> float:
    return schedule(step, total)
