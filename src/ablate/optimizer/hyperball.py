"""Hyperball: weight matrices keep their norm, and each step has a fixed length relative to it.

Wen et al. 2026, https://arxiv.org/abs/2606.16899; with Adam or Muon as the rule of matrices, AdamH
and MuonH of marin. For the step u of the rule, w <- |w| normalized(w - lr |w| normalized(u)), with
Frobenius norms.
"""

from typing import Any

import torch

from ablate.errors import UserError
from ablate.optimizer import ByRole, Rule

STD = 0.02  # of initial weights in GPT-2


class Hyperball(ByRole):
    """Rules by role; that of matrices sets only the direction of a step.

    Its lr is the length of the step relative to the matrix. Matrices have no weight decay. One that
    starts at zero, such as the v of additive scores, has no norm to keep: its steps are as long as
    those of a matrix of its size with entries of standard deviation 0.02.
    """

    def __init__(self, params: list[dict[str, Any]], *, matrix: Rule, **rules: Any) -> None:
        """rules: the other arguments of `ByRole`."""
        if getattr(matrix, "keywords", {}).get("weight_decay"):
            raise UserError(
                "optimizer.matrix.weight_decay: Hyperball keeps the norm of matrices, so no decay"
                " applies to them; omit it"
            )
        for group in params:
            if group["role"] == "matrix":
                group["weight_decay"] = 0.0
        super().__init__(params, matrix=matrix, **rules)

    @torch.no_grad()
    def advance(self, rule: torch.optim.Optimizer) -> None:
        (group,) = rule.param_groups
        if group["role"] != "matrix":
            rule.step()
            return
        weights = [p for p in group["params"] if p.grad is not None]
        before = [p.clone() for p in weights]
        lr, group["lr"] = group["lr"], 1.0  # at a rate of zero no direction could be read
        rule.step()
        group["lr"] = lr
        for p, old in zip(weights, before, strict=True):
            step = old - p
            state = self.state[p]
            if "free" not in state:  # once: a GPU is waited for
                state["free"] = not old.any().item()
            norm = STD * p.numel() ** 0.5 if state["free"] else old.norm()
            step *= lr * norm / step.norm().clamp(min=torch.finfo(p.dtype).tiny)
            p.copy_(old - step)
            if not state["free"]:
                p.mul_(norm / p.norm())
