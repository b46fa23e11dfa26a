"""Tasks: a LightningModule around a model, with its loss and its metrics."""

from __future__ import annotations

from copy import deepcopy
from typing import Any, ClassVar, Self, TypeVar

import lightning.pytorch as L
import torch
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor, nn
from torchmetrics import Metric

from ablate.config.conflicts import Conflict
from ablate.config.rules import Share
from ablate.data import Batch, Data
from ablate.model.base import Model
from ablate.random.draws import Draws
from ablate.random.seeding import derive
from ablate.task.accumulation import Accumulated, added_losses, total
from ablate.task.measures import require_numbers
from ablate.task.optimizing import MakeOptimizer, Schedule, optimizer_of, scheduled
from ablate.task.presenter import Presenter

Trained = TypeVar("Trained", bound=nn.Module)
HALVES = ("bf16-true", "16-true")  # precisions of weights


class Task(L.LightningModule):
    """Base of every task: its objective, its measures, and the groups of its optimizer.

    A subclass defines `inputs` and `losses` for training, and `evaluate` and `measures` for
    validation and test, whose results are logged as val/NAME and test/NAME. Optional: `prepare`,
    `presenter`, and a class method `configure_data(data, **keys)` that sets the task's request
    in `Data.task_settings` before the data is read. ablate.training has the callbacks of a run.

    ema: decay of an exponential moving average of the weights (ablate.training.average).
    """

    # The kinds of data that it needs (`Data.kind`); any, if a class does not state them.
    kinds: ClassVar[tuple[str, ...]]
    # The output that it requires of a model, one of its `outputs`.
    output: ClassVar[str]
    conflicts: ClassVar[tuple[Conflict, ...]] = (
        Conflict(
            lambda c: c("task.ema") is not None and c.declares("optimizer", "averages"),
            "task.ema={task.ema}: the optimizer averages the weights itself; set task.ema=null",
        ),
        Conflict(
            lambda c: c("task.ema") is not None and c("trainer.precision") in HALVES,
            "task.ema={task.ema}: an average hardly moves in 16 bits (trainer.precision="
            "{trainer.precision}); use trainer.precision=bf16-mixed",
        ),
    )
    # The metric that chooses the best weights, and whether less is better.
    metric: ClassVar[str]
    mode: ClassVar[str]
    # The unit of `throughput`.
    unit: str
    # The output of commands for a finished run.
    presenter: ClassVar[type[Presenter]] = Presenter

    def __init__(
        self,
        model: Model,
        *,
        data: Data,
        optimizer: MakeOptimizer,
        schedule: Schedule,
        seed: int,
        ema: Share | None = None,
    ):
        super().__init__()
        self.model = model
        self.data = data
        self.make_optimizer, self.schedule = optimizer, schedule
        self.seed, self.ema = seed, ema
        self.draws = Draws(model)
        self.step_so_far = Accumulated(1)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.model(*args, **kwargs)

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        """The terms whose sum is minimized, logged as train/NAME. Without a term "loss", train/loss
        is the sum. Over all processes each must average to the global mean, and so must it, times
        `step_so_far.correction`, over the batches of an optimizer step."""
        raise NotImplementedError

    def terms(self, batch: Batch) -> dict[str, Tensor]:
        """`losses`, and those of the layers."""
        losses = self.losses(batch)
        added = added_losses(self.model)
        assert not losses.keys() & added.keys(), "a layer and the task name a loss alike"
        return losses | {name: loss * self.step_so_far.weight for name, loss in added.items()}

    def prepare(self, batch: Batch, step: int) -> Batch:
        """The batch of a training step, made from one of the data: with noise, or with outputs of
        the model. step: optimizer steps so far, for training in phases.

        torch's own generator is seeded by seed, batch and process.
        """
        return batch

    def prepared(self, batch: Batch) -> Batch:
        """`prepare` outside of training, for a batch that is shown or counted: always the same."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive(self.seed, "prepared"))
            return self.prepare(batch, 0)

    def inputs(self, batch: Batch) -> tuple[Tensor, ...]:
        """The entries of a batch that the model takes, as its positional arguments."""
        raise NotImplementedError

    def units(self, batch: Batch) -> int | Tensor:
        """How many of `unit` are in a batch."""
        raise NotImplementedError

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        batch = self.prepare(batch, self.global_step)
        terms = self.terms(batch)
        loss = total(terms)
        self.step_so_far.add({"loss": loss, **terms})
        last = (batch_idx + 1) % self.trainer.accumulate_grad_batches == 0
        if last and (self.global_step + 1) % self.trainer.log_every_n_steps == 0:  # type: ignore[attr-defined]
            rate = self.optimizers().param_groups[0]["lr"]  # type: ignore[union-attr]
            for name, value in self.step_so_far.means.items():
                bar = name == "loss"
                self.log(f"train/{name}", value, prog_bar=bar, sync_dist=True, logger=False)
            self.log("train/lr", rate, logger=False)
        return loss

    @property
    def fitting(self) -> bool:
        """Whether this is training, or validation during it."""
        return self.trainer.state.fn == TrainerFn.FITTING

    def evaluate(self, batch: Batch) -> None:
        """Update the torchmetrics of this task with a batch of validation or test."""
        raise NotImplementedError

    def measures(self, split: str) -> dict[str, Tensor]:
        """The measures of a full pass over a split, from the torchmetrics, over all processes."""
        raise NotImplementedError

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        self.evaluate(batch)

    test_step = validation_step

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """As that of a module; sums of metrics are never in 16 bits, since they stall there."""
        super().to(*args, **kwargs)
        for module in self.modules():
            if isinstance(module, Metric):
                module._apply(lambda x: x.float() if x.dtype in (torch.bfloat16, torch.half) else x)
        return self

    def train(self, mode: bool = True) -> Task:
        super().train(mode)
        for copy in self.copies():
            copy.eval()
        return self

    def copies(self) -> list[nn.Module]:
        """Other models than the trained one, such as a reference (`frozen`): they are in
        checkpoints, and always in evaluation mode."""
        kind = type(self.model)
        return [x for x in self.children() if isinstance(x, kind) and x is not self.model]

    def on_validation_epoch_end(self) -> None:
        self.report("val")

    def on_test_epoch_end(self) -> None:
        self.report("test")

    def report(self, split: str) -> None:
        """Log the measures of a split, and reset their torchmetrics."""
        found = self.measures(split)
        require_numbers(self, found)
        measures = {f"{split}/{name}": value for name, value in found.items()}
        # In training Curves logs them; else trainer.validate and test return them.
        self.log_dict(measures, logger=False if self.fitting else None)
        for module in self.modules():
            if isinstance(module, Metric):
                module.reset()

    def configure_model(self) -> None:
        """Shard the model, if the strategy does so."""
        if hasattr(self.trainer.strategy, "split"):
            self.trainer.strategy.split(self)

    def configure_optimizers(self) -> Any:
        """The optimizer, with weight decay on matrices only, and the schedule, per step."""
        return scheduled(optimizer_of(self), self.schedule, self.trainer.max_steps)


def frozen(model: Trained) -> Trained:
    """A copy of a model, as it is, that is not trained."""
    return deepcopy(model).requires_grad_(False)
