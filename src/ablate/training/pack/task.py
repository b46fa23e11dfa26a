"""The training step of a pack: one loss per seed, one optimizer."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import lightning.pytorch as L
import torch
from torch import Tensor, nn

from ablate.data import Batch, Loader
from ablate.errors import RunFailed
from ablate.task import NEVER, parameter_groups, scheduled
from ablate.training.pack.batched import losses, share, stack
from ablate.training.train import RunContext


@dataclass(eq=False)
class Packed:
    """A run of a pack. context: closes the run. failed: the error that stopped its training."""

    run: RunContext
    context: ExitStack
    failed: RunFailed | None = None


class PackTask(L.LightningModule):
    """The tasks of a pack, whose parameters are views of stacked ones.

    batched: compute the losses of a step at once, else in turns. The optimizer step is shared.
    """

    def __init__(self, pack: Sequence[Packed], *, batched: bool):
        super().__init__()
        self.pack, self.batched = pack, batched
        self.members = [one.run.task for one in pack]
        self.tasks = nn.ModuleList(self.members)
        self.stacked: dict[str, nn.Parameter] = {}
        self.shown = torch.zeros(len(pack))  # what each logs as train/loss
        self.first_bad_steps = torch.full((len(pack),), NEVER)

    def setup(self, stage: str) -> None:
        for task in self.members:
            task.trainer = self.trainer

    def configure_optimizers(self) -> Any:
        """Make one optimizer over the separate parameters of every seed; see `Folders`."""
        self.stacked = stack(self.members)
        share(self.stacked, self.members)
        self.groups = [parameter_groups(task.model, task.decaying) for task in self.members]
        groups = [
            {**alike[0], "params": [p for group in alike for p in group["params"]]}
            for alike in zip(*self.groups, strict=True)
        ]
        first = self.members[0]
        return scheduled(first.make_optimizer(groups), first.schedule, self.trainer.max_steps)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Zero in place, since a seed's gradients are views of the stacked ones. Lightning calls
        this before it trains and before it validates."""
        for gradient in self.gradients():
            gradient.zero_()

    def gradients(self) -> list[Tensor]:
        return [weight.grad for weight in self.stacked.values() if weight.grad is not None]

    def training_step(self, batches: Sequence[Batch], batch_idx: int) -> Tensor:
        """Compute the losses and add the gradients; in turns, each seed's before the next one's
        forward pass."""
        parts = self.trainer.accumulate_grad_batches
        if batch_idx % parts == 0:
            self.zero_grad()
        if self.batched:
            each = losses(self.members, self.stacked, batches, batch_idx)
            (each / parts).sum().backward()
            each = self.shown = each.detach()
        else:
            found = []
            for task, batch in zip(self.members, batches, strict=True):
                task.on_train_batch_start(batch, batch_idx)
                loss = task.loss(batch)
                (loss / parts).backward()
                task.step_so_far.summed_loss += task.shown(loss).detach()
                found.append(loss.detach())
            each = torch.stack(found)
            if (batch_idx + 1) % parts == 0:
                self.shown = torch.stack(
                    [torch.as_tensor(t.step_so_far.loss) for t in self.members]
                )
        now = torch.where(each.isfinite(), NEVER, self.global_step)
        self.first_bad_steps = torch.minimum(self.first_bad_steps.to(now.device), now)
        return each.sum()

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        if not self.batched:
            for task in self.members:
                task.on_before_optimizer_step(optimizer)

    def optimizer_zero_grad(self, *args: Any) -> None:
        """Do nothing: `training_step` zeroes the gradients."""

    def backward(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing: `training_step` runs the backward passes."""

    def configure_gradient_clipping(
        self,
        optimizer: torch.optim.Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        if gradient_clip_algorithm == "value":
            self.clip_gradients(optimizer, gradient_clip_val, gradient_clip_algorithm)
        elif gradient_clip_val and self.batched:
            clip_each(self.gradients(), gradient_clip_val)
        elif gradient_clip_val:
            for groups in self.groups:  # in the order of a separate run, for bitwise equality
                own = [parameter for group in groups for parameter in group["params"]]
                nn.utils.clip_grad_norm_(own, gradient_clip_val)

    def validation_step(self, batches: Sequence[Batch], batch_idx: int) -> None:
        for one, batch in zip(self.pack, batches, strict=True):
            if one.failed is None:
                one.run.task.evaluate(batch)

    def alive(self) -> list[Packed]:
        """Return the members with finite losses so far; RunFailed if none. Synchronizes a GPU."""
        for one, bad in zip(self.pack, self.first_bad_steps, strict=True):
            if one.failed is None:
                one.run.task.first_bad_step = bad
                self.passes(one, one.run.task.require_finite_losses)
        return self.left()

    def passes(self, one: Packed, check: Any) -> bool:
        """Return whether a check passed; a member that fails it is not trained further."""
        try:
            check()
        except RunFailed as error:
            one.failed = error
            return False
        return True

    def left(self) -> list[Packed]:
        found = [one for one in self.pack if one.failed is None]
        if not found:
            assert self.pack[0].failed is not None
            raise self.pack[0].failed
        return found

    def separate(self) -> None:
        """Give every task parameters of its own again."""
        for task in self.members:
            for parameter in task.parameters():
                parameter.data, parameter.grad = parameter.data.clone(), None
            task.first_bad_step = torch.tensor(NEVER)
        self.stacked = {}


def clip_each(gradients: Sequence[Tensor], largest: float) -> None:
    """Apply torch's clip_grad_norm_ per seed; k is the first axis of each gradient."""
    norms = torch.stack([gradient.flatten(1).norm(dim=1) for gradient in gradients]).norm(dim=0)
    factors = (largest / (norms + 1e-6)).clamp(max=1.0)
    for gradient in gradients:
        gradient.mul_(factors.view(-1, *[1] * (gradient.dim() - 1)))


class PackLoader:
    """The batches of several loaders of equal length, side by side."""

    def __init__(self, loaders: Sequence[Loader]):
        self.loaders = loaders

    def __len__(self) -> int:
        return len(self.loaders[0])

    def __iter__(self) -> Iterator[tuple[Batch, ...]]:
        return zip(*self.loaders, strict=True)

    def state_dict(self) -> dict[str, int]:
        return self.loaders[0].state_dict()

    def load_state_dict(self, state: dict[str, int]) -> None:
        for loader in self.loaders:
            loader.load_state_dict(state)


class PackData(L.LightningDataModule):
    """The data of each seed, side by side."""

    def __init__(self, pack: Sequence[Packed]):
        super().__init__()
        self.data = [one.run.data for one in pack]

    def setup(self, stage: str) -> None:
        for data in self.data:
            data.trainer = self.trainer

    def train_dataloader(self) -> PackLoader:
        return PackLoader([data.train_dataloader() for data in self.data])

    def val_dataloader(self) -> PackLoader:
        return PackLoader([data.val_dataloader() for data in self.data])
