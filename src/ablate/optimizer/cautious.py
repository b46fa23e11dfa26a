"""Cautious weight decay: a weight decays only if the step moves it toward zero.

Chen et al. 2025, https://arxiv.org/abs/2510.12402; modded-nanogpt and nanochat have it in Muon. For
the step u of a rule, w <- w - lr u - lr decay w [u w >= 0].
"""

from typing import Any

import torch

from ablate.errors import UserError
from ablate.optimizer import ByRole


class Cautious(ByRole):
    """Rules by role whose weight decay, which must be decoupled (AdamW, Muon), is cautious."""

    def __init__(self, params: list[dict[str, Any]], **rules: Any) -> None:
        super().__init__(params, **rules)
        for rule in self.rules:
            (group,) = rule.param_groups
            coupled = isinstance(rule, torch.optim.Adam | torch.optim.SGD)
            if coupled and group["weight_decay"] and not group.get("decoupled_weight_decay"):
                raise UserError(
                    f"optimizer: the weight decay of torch.optim.{type(rule).__name__} is a part of"
                    " the gradient, and cautious weight decay must be decoupled; use AdamW"
                )

    @torch.no_grad()
    def advance(self, rule: torch.optim.Optimizer) -> None:
        (group,) = rule.param_groups
        if not group["weight_decay"]:
            rule.step()
            return
        weights = [p for p in group["params"] if p.grad is not None]
        before = [p.clone() for p in weights]
        decay, group["weight_decay"] = group["weight_decay"], 0.0
        rule.step()
        group["weight_decay"] = decay
        for p, old in zip(weights, before, strict=True):
            p.sub_(group["lr"] * decay * old * ((old - p) * old >= 0))
