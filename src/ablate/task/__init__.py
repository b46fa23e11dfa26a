"""Tasks: a LightningModule around a model, with its loss and its metrics."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from functools import partial, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import lightning.pytorch as L
import torch
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR
from torchmetrics import Metric

from ablate.config.conflicts import Conflict
from ablate.config.rules import Share
from ablate.data import Batch, Data
from ablate.errors import UserError
from ablate.figures.maps import Map
from ablate.model.base import ROLES, Model
from ablate.model.layers.stack import Stack
from ablate.random.draws import Draws
from ablate.random.seeding import derive
from ablate.run_files import write_text
from ablate.task.accumulation import Accumulated
from ablate.task.measures import require_numbers

if TYPE_CHECKING:
    from matplotlib.figure import Figure


MakeOptimizer = Callable[[list[dict[str, Any]]], torch.optim.Optimizer]
Schedule = Callable[[int, int], float]
Trained = TypeVar("Trained", bound=nn.Module)


class Task(L.LightningModule):
    """Base of every task: optimizer, schedule, seeded steps, and a loss that must stay finite.

    A subclass defines `loss` for training, and `evaluate` and `measures` for validation and test,
    whose results are logged as val/NAME and test/NAME. The output of commands on a finished run is
    also the task's: `artifacts`, `generate`, `drawer`.

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
    )
    # The metric that chooses the best weights, and whether less is better.
    metric: ClassVar[str]
    mode: ClassVar[str]
    # The unit of `throughput`.
    unit: str
    # Keys of decoding, which may be changed when a finished run is evaluated.
    search_keys: ClassVar[tuple[str, ...]] = ()
    # The unit of the loss.
    loss_unit: ClassVar[str] = "nats"
    # The kind of model, in messages of ablate.generate; the options of it that `generate` takes;
    # and some of them, as an example, with {prompt} for that of `notes`.
    family: ClassVar[str] = ""
    options: ClassVar[tuple[str, ...]] = ()
    example_options: ClassVar[str] = ""
    # Validation examples that may be drawn side by side, and whether `answered` takes a source.
    drawn_examples: ClassVar[int] = 1
    takes_source: ClassVar[bool] = False

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

    @classmethod
    def configure_data(cls, data: Data, **keys: Any) -> None:
        """Set this task's request in `Data.task_settings` before the data is read; by default none.

        keys: those of the task's node of the config.
        """

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.model(*args, **kwargs)

    def loss(self, batch: Batch) -> Tensor:
        """Mean loss of a training batch; over all processes it must average to the global mean, and
        so must it, times `step_so_far.correction`, over the batches of an optimizer step."""
        raise NotImplementedError

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        """The terms whose sum is minimized, each like `loss` and logged as train/NAME. Without a
        term "loss", train/loss is the sum."""
        return {"loss": self.loss(batch)}

    def terms(self, batch: Batch) -> dict[str, Tensor]:
        """`losses`, and those of the layers."""
        losses = self.losses(batch)
        added = added_losses(self.model)
        assert not losses.keys() & added.keys(), "a layer and the task name a loss alike"
        return losses | added

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
        batch = self.prepare(batch, batch_idx // self.trainer.accumulate_grad_batches)
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

    def notes(self) -> dict[str, Any]:
        """Notes on the measures for result.json."""
        return {}

    def artifacts(self, folder: Path) -> list[Path]:
        """Write samples of the trained model, in evaluation mode on the CPU, into the folder of its
        run; return the paths. Text to read is sample.txt (`write_sample`), and PNGs in figures/ go
        to the logger."""
        return []

    @property
    def generates(self) -> bool:
        """Whether `generate` supports this model and data."""
        return type(self).generate is not Task.generate

    def generate(self, arguments: Mapping[str, Any], folder: Path) -> Iterable[str]:
        """The output of `python -m ablate.generate` for the options (of `options`) that were set.

        folder: of the run, for output files.
        """
        raise NotImplementedError

    def predictions(self, batch: Batch) -> dict[str, Tensor]:
        """Columns of a table with a row for each example of a batch, each b: `loss`, and the task's
        other columns. Raises UserError if examples have no loss."""
        raise UserError(
            f"{type(self).__name__} has no per-example loss, so no predictions are kept;"
            " language models, classifiers and sequence-to-sequence models have"
        )

    def numbered(self, index: int) -> dict[str, Any]:
        """A validation example as a batch of size 1."""
        count = self.data.length("val")
        if not 0 <= index < count:
            raise UserError(f"--index {index}: the validation split has examples 0 to {count - 1}")
        return self.data.example(index)

    def answered(self, source: str) -> dict[str, Any]:
        """A source and the model's output for it, as a batch of size 1; see `takes_source`."""
        raise NotImplementedError

    def drawer(
        self, examples: Sequence[dict[str, Any]], maps: Sequence[Map], caption: str
    ) -> Callable[[Map, Sequence[int]], Figure]:
        """Draws the attention map of a layer, for the heads with these numbers.

        examples: batches of size 1. maps: of the first. caption: the source of their targets.
        """
        return self.model.drawer(self.data, examples[0], maps)

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        self.evaluate(batch)

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        self.evaluate(batch)

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
        self._report("val")

    def on_test_epoch_end(self) -> None:
        self._report("test")

    def _report(self, split: str) -> None:
        found = self.measures(split)
        require_numbers(self, found)
        measures = {f"{split}/{name}": value for name, value in found.items()}
        # In training Curves logs them; else trainer.validate and test return them.
        self.log_dict(measures, logger=False if self.fitting else None)
        self.reset_measures()

    def reset_measures(self) -> None:
        """Reset the torchmetrics that `evaluate` updates."""
        for module in self.modules():
            if isinstance(module, Metric):
                module.reset()

    def configure_model(self) -> None:
        """Shard the model, if the strategy does so."""
        if hasattr(self.trainer.strategy, "split"):
            self.trainer.strategy.split(self)

    def parameter_groups(self) -> list[dict[str, Any]]:
        """The trained parameters, with weight decay and without, as in nanoGPT: all
        but biases and norms have it. An optimizer that `takes_roles` gets a group for each role,
        with the key "role"; a role with a `rate_factor` also has its own group."""
        apart = getattr(getattr(self.make_optimizer, "func", None), "takes_roles", False)
        roles, groups = self.model.roles(), dict[str, dict[str, Any]]()
        factors = self.model.rate_factors()
        for name, parameter in self.model.named_parameters():
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
                group["lr"] = factors[role] * self.make_optimizer.keywords["lr"]  # type: ignore[attr-defined]
        return [groups[key] for key in ("decayed", *ROLES) if key in groups]

    def configure_optimizers(self) -> Any:
        """The optimizer, with weight decay on matrices only, and the schedule, per step."""
        optimizer = self.make_optimizer(self.parameter_groups())
        return scheduled(optimizer, self.schedule, self.trainer.max_steps)


def frozen(model: Trained) -> Trained:
    """A copy of a model, as it is, that is not trained."""
    return deepcopy(model).requires_grad_(False)


def write_sample(folder: Path, text: str) -> Path:
    """Write the sample of a run, which its summary shows."""
    path = folder / "sample.txt"
    write_text(path, text)
    return path


def scheduled(optimizer: torch.optim.Optimizer, schedule: Schedule, total: int) -> dict[str, Any]:
    """An optimizer and its schedule, per step, as Lightning takes them."""
    # A fused optimizer would unscale float16 gradients in its step; Lightning has to do so before,
    # to clip them.
    optimizer._step_supports_amp_scaling = False  # type: ignore[attr-defined]
    scheduler = LambdaLR(optimizer, partial(_factor, schedule, total))
    return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def _factor(schedule: Schedule, total: int, step: int) -> float:
    return schedule(step, total)


def total(terms: Mapping[str, Tensor]) -> Tensor:
    """The sum that is minimized."""
    return reduce(operator.add, terms.values())


def added_losses(model: nn.Module) -> dict[str, Tensor]:
    """The losses of the layers in the last pass, by name, summed over the layers."""
    added: dict[str, Tensor] = {}
    for part in model.modules():
        if isinstance(part, Stack):
            for name, value in part.losses:
                added[name] = added[name] + value if name in added else value
            part.losses = []
    return added
