"""Tasks: a LightningModule around a model, with its loss and its metrics."""

from __future__ import annotations

import math
import operator
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import deepcopy
from functools import partial, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import lightning.pytorch as L
import torch
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torchmetrics import Metric

from ablate.config.conflicts import Conflict
from ablate.config.rules import Share
from ablate.data import Batch, Data
from ablate.errors import RunFailed, UserError, suggest
from ablate.figures.maps import Map
from ablate.model.base import ROLES, Model, outputs
from ablate.model.layers.stack import Stack
from ablate.random.draws import Draws
from ablate.random.seeding import derive, seed_torch
from ablate.run_files import write_text
from ablate.task.accumulation import Accumulated
from ablate.task.cross_entropy import CrossEntropy
from ablate.task.parallel import Sharing

if TYPE_CHECKING:
    from matplotlib.figure import Figure


MakeOptimizer = Callable[[list[dict[str, Any]]], torch.optim.Optimizer]
Schedule = Callable[[int, int], float]

NEVER = torch.iinfo(torch.int64).max
LEAKS = (
    "label leakage: outputs depend on tokens that come after them, which they have to predict, so"
    " the loss does not measure prediction"
)


class Task(L.LightningModule):
    """Base of every task: optimizer, schedule, seeded steps, and a loss that must stay finite.

    A subclass defines `loss` for training, and `evaluate` and `measures` for validation and test,
    whose results are logged as val/NAME and test/NAME. The output of commands on a finished run is
    also the task's: `artifacts`, `generate`, `drawer`.

    average: with `ema`, the exponential moving average of the model's weights after each step, with
    this decay; of a schedule-free optimizer, its average. Validation and test use it, and the best
    weights are its weights.
    reference: with `has_reference`, a frozen copy of the model at the start of training.
    Both are in checkpoints and always in evaluation mode.
    """

    # The kinds of data that it needs (`Data.kind`); any, if a class does not state them.
    kinds: ClassVar[tuple[str, ...]]
    # The output that it requires of a model, one of its `outputs`.
    output: ClassVar[str]
    conflicts: ClassVar[tuple[Conflict, ...]] = ()
    # The metric that chooses the best weights, and whether less is better.
    metric: ClassVar[str]
    mode: ClassVar[str]
    # The unit of `throughput`.
    unit: str
    # A computation on the part of a batch that one process has, which makes results depend on the
    # number of processes; None: only rounding does. A module of the model may also state it.
    of_process: str | None = None
    # The index of the input that the model predicts from left to right; None: there is none.
    predicted: ClassVar[int | None] = None
    leaks: bool = False
    # Keys of the model that may differ from those of the run it starts from (init_from).
    may_differ: ClassVar[tuple[str, ...]] = ()
    # Keys of decoding, which may be changed when a finished run is evaluated.
    search_keys: ClassVar[tuple[str, ...]] = ()
    # The unit of the loss.
    loss_unit: ClassVar[str] = "nats"
    has_reference: ClassVar[bool] = False
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
        self.averages_itself = getattr(getattr(optimizer, "func", None), "averages", False)
        if self.averages_itself and ema is not None:
            raise UserError(
                f"task.ema={ema}: the optimizer averages the weights itself; set task.ema=null"
            )
        self.average: AveragedModel | None = None
        if ema is not None or self.averages_itself:
            self.average = moving_average(model, ema or 0.0)
        self.reference = deepcopy(model).requires_grad_(False) if self.has_reference else None
        self.data = data
        self.make_optimizer, self.schedule, self.seed = optimizer, schedule, seed
        self.draws = Draws(model)
        self.step_so_far = Accumulated(1)
        self.first_bad_step = torch.tensor(NEVER)

    @classmethod
    def configure_data(cls, data: Data, **keys: Any) -> None:
        """Set this task's request in `Data.task_settings` before the data is read; by default none.

        keys: those of the task's node of the config.
        """

    @property
    def compiles(self) -> list[nn.Module]:
        """The modules that compile=true compiles: those of the model, and the loss of logits."""
        losses = (module for module in self.children() if isinstance(module, CrossEntropy))
        return [*self.model.compiles, *losses]

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

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        self.draws.keys = self.keys_of_batch(batch_idx).to(self.device)
        # Random numbers of other code, such as a custom component, depend on (seed, batch,
        # process): a resumed run repeats them, and validation in between does not change them.
        seed = derive(self.seed, "step", batch_idx, self.data.share().rank)
        seed_torch(seed, self.device)
        if batch_idx % self.trainer.accumulate_grad_batches == 0:
            self.step_so_far = Accumulated(self.trainer.accumulate_grad_batches)

    def keys_of_batch(self, number: int) -> Tensor:
        """The keys of the model's random streams for a training batch, counted from 0."""
        step, part = divmod(number, self.trainer.accumulate_grad_batches)
        rank, world = self.data.share()
        share = self.data.batch_size // world  # as `Order.slice` cuts a batch
        return self.draws.of_batch(self.seed, step, part * self.data.batch_size + rank * share)

    def on_train_batch_end(self, *_: Any) -> None:
        self.draws.keys = None

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        batch = self.prepare(batch, batch_idx // self.trainer.accumulate_grad_batches)
        terms = self.terms(batch)
        loss = total(terms)
        self._watch(loss.detach())
        self.step_so_far.add({"loss": loss, **terms})
        last = (batch_idx + 1) % self.trainer.accumulate_grad_batches == 0
        if last and (self.global_step + 1) % self.trainer.log_every_n_steps == 0:  # type: ignore[attr-defined]
            self.require_finite_losses()
            rate = self.optimizers().param_groups[0]["lr"]  # type: ignore[union-attr]
            for name, value in self.step_so_far.means.items():
                bar = name == "loss"
                self.log(f"train/{name}", value, prog_bar=bar, sync_dist=True, logger=False)
            self.log("train/lr", rate, logger=False)
        return loss

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        if self.step_so_far.uneven:
            for parameter in self.model.parameters():
                if parameter.grad is not None:
                    parameter.grad.mul_(self.step_so_far.correction)

    def _watch(self, loss: Tensor) -> None:
        """Record the first step whose loss is not finite, without synchronizing with a GPU."""
        bad_step = torch.where(loss.isfinite(), NEVER, self.global_step)
        self.first_bad_step = torch.minimum(self.first_bad_step.to(loss.device), bad_step)

    def require_finite_losses(self) -> None:
        """RunFailed if any loss so far, in any process, was NaN or infinite; synchronizes a GPU.

        Called before a value is logged and before a validation.
        """
        first = self.first_bad_step.to(self.device)
        # If only one process failed, the others would wait.
        step = int(self.trainer.strategy.reduce(first, reduce_op="min"))
        if step < NEVER:
            raise not_finite(step)

    @property
    def fitting(self) -> bool:
        """Whether this is training, or validation during it."""
        return self.trainer.state.fn == TrainerFn.FITTING

    def on_validation_start(self) -> None:
        self.require_finite_losses()
        if self.averages_itself and self.fitting:
            self._average_by_optimizer()

    def evaluate(self, batch: Batch) -> None:
        """Update the torchmetrics of this task with a batch of validation or test."""
        raise NotImplementedError

    def measures(self, split: str) -> dict[str, Tensor]:
        """The measures of a full pass over a split, from the torchmetrics, over all processes."""
        raise NotImplementedError

    def measured(self, split: str) -> list[str]:
        """The names of all that `measures` may return after training, before anything is measured;
        none if one of them needs examples, as some of torchmetrics do. UserError for a measure that
        is not one number.

        Needs a trainer that is not fitting.
        """
        measures: dict[str, Tensor] = {}
        with warnings.catch_warnings(), suppress(Exception):
            warnings.simplefilter("ignore")  # torchmetrics warns of a mean of nothing
            measures = self.measures(split)
        self._require_numbers(measures)
        return list(measures)

    def _require_numbers(self, measures: Mapping[str, Any]) -> None:
        for name, value in measures.items():
            try:
                shape = tuple(torch.as_tensor(value).shape)
                wrong = "" if math.prod(shape) == 1 else f"has the shape {shape}"
            except (TypeError, ValueError, RuntimeError):
                wrong = f"is a {type(value).__name__}"
            if wrong:
                raise UserError(
                    f"{type(self).__name__}.measures: {name} {wrong}, and a measure is one number"
                )

    def require_metric(self) -> None:
        """Raise UserError unless `metric` is a measure of validation, and `mode` min or max. Needs
        a trainer that is not fitting."""
        name = type(self).__name__
        if self.mode not in ("min", "max"):
            raise UserError(f"{name}.mode={self.mode}: must be min or max")
        names = [f"val/{measure}" for measure in self.measured("val")]
        if names and self.metric not in names:
            raise UserError(
                f"{name}.metric={self.metric} is not measured; allowed:"
                f" {', '.join(names)}{suggest(self.metric, names)}"
            )

    @property
    def caution(self) -> str | None:
        """Why the measures of this model would mislead; printed before training and stored with
        them."""
        return LEAKS if self.leaks else None

    @torch.no_grad()
    def look_for_leakage(self) -> None:
        """Set `leaks`: whether a change of the later half of a sequence that is predicted from the
        left changes an output of the earlier half. The weights are random: initial ones may hide
        it."""
        if self.predicted is None:
            return
        inputs = [x[:1] for x in self.inputs(self.prepared(self.data.example()))]
        tokens, model = inputs[self.predicted], deepcopy(self.model).eval()
        half, found = tokens.shape[1] // 2, []
        if not half:
            return
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=0.1)
            for later in (tokens[:, half:], tokens[:, :1].expand(-1, tokens.shape[1] - half)):
                torch.manual_seed(0)  # of a part that draws
                inputs[self.predicted] = torch.cat([tokens[:, :half], later], dim=1)
                found.append(outputs(model(*inputs))[0][:, :half])
        one, other = found
        # False for NaN, which is possible with random weights.
        self.leaks = bool(((one - other).abs() > 1e-4 * one.abs().max()).any())

    def notes(self) -> dict[str, Any]:
        """Notes on the measures for result.json."""
        return {"caution": self.caution} if self.caution else {}

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

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Let `model` be the moving average, if there is one."""
        model = self.model
        if self.average is not None:
            self.model = self.average.module  # type: ignore[assignment]  # a copy of it
        try:
            yield
        finally:
            self.model = model

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        with self.averaged():
            self.evaluate(batch)

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        with self.averaged():
            self.evaluate(batch)

    def train(self, mode: bool = True) -> Task:
        super().train(mode)
        for copy in (self.average, self.reference):
            if copy is not None:
                copy.eval()
        return self

    def optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        super().optimizer_step(*args, **kwargs)
        if self.average is not None and not self.averages_itself:
            self.average.update_parameters(self.model)

    @torch.no_grad()
    def _average_by_optimizer(self) -> None:
        """Copy the optimizer's weights for evaluation to the average; training goes on from the
        weights as they are, to the bit."""
        assert self.average is not None
        optimizer: Any = self.optimizers(use_pl_optimizer=False)
        trained = [parameter.clone() for parameter in self.model.parameters()]
        optimizer.eval()
        self.average.update_parameters(self.model)
        optimizer.train()
        for parameter, value in zip(self.model.parameters(), trained, strict=True):
            parameter.copy_(value)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Let the best weights, which have no state of an optimizer, be those measured."""
        if self.average is not None and "optimizer_states" not in checkpoint:
            measured = self.average.module.state_dict()
            checkpoint["state_dict"] |= {f"model.{name}": x for name, x in measured.items()}

    def on_validation_epoch_end(self) -> None:
        self._report("val")

    def on_test_epoch_end(self) -> None:
        self._report("test")

    def _report(self, split: str) -> None:
        found = self.measures(split)
        self._require_numbers(found)
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
        """Split the model in training, if the strategy does so; evaluation uses the whole model."""
        strategy = self.trainer.strategy
        if not isinstance(strategy, Sharing):
            return
        self.require_one_model()
        if self.fitting:
            strategy.split(self.model)

    def require_one_model(self) -> None:
        """Raise UserError if there are copies of the model, which are not split."""
        if (self.average or self.reference) is not None:
            raise UserError(
                f"trainer.strategy=fsdp: {type(self).__name__} keeps a copy of its model, which is"
                " not sharded; use trainer=ddp"
            )

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
        if self.averages_itself:
            optimizer.train()  # type: ignore[attr-defined]
        return scheduled(optimizer, self.schedule, self.trainer.max_steps)


def moving_average(model: Model, decay: float) -> AveragedModel:
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay))
    for part, of_average in zip(model.modules(), average.module.modules(), strict=True):
        if hasattr(part, "kernel"):  # which records its implementation for result.json
            of_average.kernel = part.kernel
    return average.requires_grad_(False)


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


def require_finite(value: float, step: int) -> None:
    """RunFailed when a measure or a weight is NaN or infinite."""
    if not math.isfinite(value):
        raise not_finite(step)


def not_finite(step: int) -> RunFailed:
    """The error of a training that diverged at `step`, with remedies."""
    return RunFailed(
        f"the loss is infinite or nan at step {step}: try a smaller optimizer.lr, a longer "
        f"schedule.warmup, model.norm=pre or trainer.gradient_clip_val=1; the last good "
        f"checkpoint is kept"
    )
