"""Built-in optimizers. Several as one: a rule for each role of parameters (`Model.roles`).

    # conf/optimizer/NAME.yaml
    _target_: ablate.optimizer.ByRole
    _partial_: true
    lr: 1e-3
    matrix: {_target_: torch.optim.SGD, _partial_: true, lr: 0.1, momentum: 0.9}
    others: {_target_: torch.optim.AdamW, _partial_: true}

One object has one step, one schedule and one state, so that clipping, accumulation and
checkpoints are those of a single optimizer.
"""

from collections.abc import Callable
from typing import Annotated, Any, ClassVar

import torch

from ablate.config.conflicts import Conflict
from ablate.config.rules import Int, NotNegative, Positive, Share
from ablate.errors import UserError
from ablate.machine.version import install

Rule = Callable[[list[dict[str, Any]]], torch.optim.Optimizer]


class Combined(torch.optim.Optimizer):
    """Optimizers of one group of parameters each, as one."""

    def __init__(self, rules: list[torch.optim.Optimizer]) -> None:
        self.rules = rules
        super().__init__([group for rule in rules for group in rule.param_groups], {})
        self._share()

    def _share(self) -> None:
        """Let the rules work on the groups and the state of this object."""
        for rule, group in zip(self.rules, self.param_groups, strict=True):
            rule.param_groups, rule.state = [group], self.state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)  # makes new groups and a new state
        self._share()

    def step(self, closure: Any = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for rule in self.rules:
            self.advance(rule)
        return loss

    def advance(self, rule: torch.optim.Optimizer) -> None:
        """Step one of the rules."""
        rule.step()


class ByRole(Combined):
    """Train the parameters of each role with its own rule; roles without one follow `others`.

    lr, weight_decay: of every rule that does not state its own. Vectors have no weight decay.

    The schedule multiplies the learning rate of every rule; train/lr is that of the first group, in
    the order of `ROLES`.
    """

    takes_roles: ClassVar[bool] = True  # see ablate.task.optimizing

    def __init__(
        self,
        params: list[dict[str, Any]],
        *,
        lr: Positive | None = None,
        weight_decay: NotNegative | None = None,
        embedding: Rule | None = None,
        head: Rule | None = None,
        matrix: Rule | None = None,
        tensor: Rule | None = None,
        vector: Rule | None = None,
        others: Rule | None = None,
    ):
        rules = {
            "embedding": embedding,
            "head": head,
            "matrix": matrix,
            "tensor": tensor,
            "vector": vector,
        }
        made: list[torch.optim.Optimizer] = []
        for group in params:
            name = group["role"] if rules[group["role"]] else "others"
            rule = rules[group["role"]] or others
            if rule is None:
                raise UserError(
                    f"optimizer.{group['role']}: the optimizer has no rule for the model's"
                    f" parameters of this role; add one, or optimizer.others"
                )
            for key, value in (("lr", lr), ("weight_decay", weight_decay)):
                if value is not None and key not in getattr(rule, "keywords", {}):
                    group.setdefault(key, value)
            try:
                made.append(rule([group]))
            except ValueError as error:  # a value that torch rejects
                raise UserError(f"optimizer.{name}: {error}") from None
        super().__init__(made)


class ScheduleFree(Combined):
    """AdamW without a schedule, of the package schedulefree: an average of the weights, which is
    measured and kept, replaces the decay of the rate.

    Defazio et al. 2024, "The road less scheduled", https://arxiv.org/abs/2405.15682. betas: the
    first is that of the interpolation at which gradients are taken. warmup_steps: of a linear
    warm-up. A step counts in the average by its number to the power r, and its rate to the power
    weight_lr_power.
    """

    averages: ClassVar[bool] = True  # see ablate.training.average
    conflicts = (
        Conflict(
            lambda c: c.option("schedule") != "constant",
            "optimizer={optimizer} averages the weights instead of lowering the rate, and"
            " schedule={schedule} lowers it; use schedule=constant",
        ),
    )
    rules: list[Any]

    def __init__(
        self,
        params: list[dict[str, Any]],
        *,
        lr: Positive,
        betas: list[Share],
        eps: Positive,
        weight_decay: NotNegative,
        warmup_steps: Annotated[int, Int(0, 2**31 - 1)],
        r: NotNegative,
        weight_lr_power: NotNegative,
    ):
        try:
            from schedulefree import AdamWScheduleFree
        except ModuleNotFoundError:
            raise UserError(
                f"optimizer=schedule_free needs schedulefree: {install('optimizers')}"
            ) from None
        usual = {"lr": lr, "weight_decay": weight_decay}
        rules = [
            AdamWScheduleFree(
                [usual | group],
                betas=tuple(betas),
                eps=eps,
                warmup_steps=warmup_steps,
                r=r,
                weight_lr_power=weight_lr_power,
            )
            for group in params
        ]
        super().__init__(rules)

    def train(self) -> None:
        """Let the parameters be those that are trained."""
        for rule in self.rules:
            rule.train()

    def eval(self) -> None:
        """Let the parameters be their average."""
        for rule in self.rules:
            rule.eval()
