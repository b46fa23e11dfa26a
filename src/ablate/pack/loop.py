"""The training of a pack: one Trainer, one loop, one optimizer; what is told is told by seed."""

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import lightning.pytorch as L
import torch
from lightning.pytorch.callbacks import Callback
from torch import Tensor, nn

from ablate.checkpoint import BEST, HALF, LAST, PREVIOUS, Checkpoints, require_finite_weights
from ablate.data import Batch, Loader
from ablate.errors import RunFailed
from ablate.pack.batched import losses, share, stack
from ablate.pack.checkpoint import Folders
from ablate.progress import Told
from ablate.seeding import derive
from ablate.task import NEVER, parameter_groups, scheduled
from ablate.train import Begun, make_trainer


@dataclass(eq=False)
class Packed:
    """A run of a pack. `context` ends what was begun; failed: why it is trained no further."""

    run: Begun
    context: ExitStack
    failed: RunFailed | None = None


def fit(pack: Sequence[Packed], step: int, *, batched: bool) -> None:
    """Train all from that step on to the end, or until they have failed."""
    first = pack[0].run
    task = PackTask(pack, batched=batched)
    checkpoints = PackCheckpoints(pack, every=first.cfg.checkpoint_every)
    told = [Told(one.run.run_dir) for one in pack]
    trainer = make_trainer(
        first.cfg, first.run_dir, first.data, [PackCurves(pack), checkpoints, *told]
    )
    if step >= trainer.max_steps:
        return
    checkpoints.files.step = step
    path = checkpoints.folder / LAST if step else None
    try:
        trainer.fit(task, datamodule=PackData(pack), ckpt_path=path, weights_only=False)
    except RunFailed:
        if not all(one.failed for one in pack):
            raise
    finally:
        task.come_apart()


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
    """Each seed's own data."""

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


class PackTask(L.LightningModule):
    """The tasks of a pack, whose parameters are views of stacked ones.

    batched: the losses of a step are computed at once, else in turns. The optimizer's step is one.
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
        """One optimizer, every parameter of every seed for itself; see `Folders`."""
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
        """In place: those of a seed are views of the stacked ones. Lightning asks for it before it
        trains and before it validates."""
        for gradient in self.gradients():
            gradient.zero_()

    def gradients(self) -> list[Tensor]:
        return [weight.grad for weight in self.stacked.values() if weight.grad is not None]

    def training_step(self, batches: Sequence[Batch], batch_idx: int) -> Tensor:
        """Adds the gradients, too: of seeds in turns before the next one's forward pass."""
        parts = self.trainer.accumulate_grad_batches
        if batch_idx % parts == 0:
            self.zero_grad()
        if self.batched:
            seeds = [derive(task.seed, "step", batch_idx, 0) for task in self.members]
            each = losses(self.members, self.stacked, batches, seeds)
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
        """`training_step` has done it."""

    def backward(self, *args: Any, **kwargs: Any) -> None:
        """`training_step` has done it."""

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
            for groups in self.groups:  # in the order of a run by itself: the same to the last bit
                own = [parameter for group in groups for parameter in group["params"]]
                nn.utils.clip_grad_norm_(own, gradient_clip_val)

    def validation_step(self, batches: Sequence[Batch], batch_idx: int) -> None:
        for one, batch in zip(self.pack, batches, strict=True):
            if one.failed is None:
                one.run.task.evaluate(batch)

    def alive(self) -> list[Packed]:
        """Those whose losses were finite so far; RunFailed where none is left. A GPU waits here."""
        for one, bad in zip(self.pack, self.first_bad_steps, strict=True):
            if one.failed is None:
                one.run.task.first_bad_step = bad
                self.mind(one, one.run.task.require_finite_losses)
        return self.left()

    def mind(self, one: Packed, check: Any) -> bool:
        """Whether a check went well; a member of whom it did not is trained no further."""
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

    def come_apart(self) -> None:
        """Give every task parameters of its own again."""
        for task in self.members:
            for parameter in task.parameters():
                parameter.data, parameter.grad = parameter.data.clone(), None
            task.first_bad_step = torch.tensor(NEVER)
        self.stacked = {}


def clip_each(gradients: Sequence[Tensor], largest: float) -> None:
    """torch's clip_grad_norm_ for every seed: k is the first axis of each gradient."""
    norms = torch.stack([gradient.flatten(1).norm(dim=1) for gradient in gradients]).norm(dim=0)
    factors = (largest / (norms + 1e-6)).clamp(max=1.0)
    for gradient in gradients:
        gradient.mul_(factors.view(-1, *[1] * (gradient.dim() - 1)))


class PackCurves(Callback):
    """What each task would log: into its own curves, and to its own logger."""

    def __init__(self, pack: Sequence[Packed]):
        self.pack = pack
        self._rate = 0.0

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        for one, own in zip(self.pack, batch, strict=True):
            one.run.curves.on_train_batch_start(trainer, one.run.task, own, batch_idx)

        # Of the step to come; float32, as Lightning keeps what is logged.
        self._rate = float(torch.tensor(trainer.optimizers[0].param_groups[0]["lr"]))

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, *args: Any, **kwargs: Any
    ) -> None:
        assert isinstance(pl_module, PackTask)
        every: int = trainer.log_every_n_steps  # type: ignore[attr-defined]
        if trainer.fit_loop.epoch_loop._should_accumulate() or trainer.global_step % every:
            return
        alive = pl_module.alive()
        for one, loss in zip(self.pack, pl_module.shown.tolist(), strict=True):
            if one in alive:
                _log(one, trainer.global_step, {"train/loss": loss, "train/lr": self._rate})

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        assert isinstance(pl_module, PackTask)
        pl_module.alive()
        for one in self.pack:
            one.run.curves.on_validation_start(trainer, one.run.task)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        for one in self.pack:
            one.run.curves.on_train_end(trainer, one.run.task)


def _log(one: Packed, step: int, values: dict[str, float]) -> None:
    one.run.curves.add(step, values)
    for logger in one.run.trainer.loggers:
        logger.log_metrics({**values, "epoch": 0}, step)


class PackCheckpoints(Checkpoints):
    """As of one run, in every folder. Each seed has a best of its own."""

    def __init__(self, pack: Sequence[Packed], *, every: int):
        super().__init__(pack[0].run.checkpoints.folder, every=every)
        self.pack, self.files = pack, Folders(pack)

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        super().setup(trainer, pl_module, stage)
        trainer.strategy.checkpoint_io = self.files
        for one in self.pack:
            one.run.checkpoints.folder.mkdir(parents=True, exist_ok=True)
            for left_by_a_kill in one.run.checkpoints.folder.glob(f"*{HALF}"):
                left_by_a_kill.unlink()

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        assert isinstance(pl_module, PackTask)
        step = trainer.global_step
        better: list[Packed] = []
        for one in pl_module.alive():
            measures = one.run.task.measures("val")
            values = {f"val/{name}": float(value) for name, value in measures.items()}
            one.run.task.reset_measures()

            def judge(one: Packed = one, value: float = values[one.run.task.metric]) -> None:
                if one.run.checkpoints.best_so_far(value, one.run.task, step):
                    better.append(one)

            if pl_module.mind(one, judge):
                _log(one, step, values)
            one.run.curves.write()
        self._write(trainer, pl_module, BEST, weights_only=True, of=better)
        self._save_last(trainer, pl_module)

    def _write(
        self, trainer: L.Trainer, task: L.LightningModule, name: str, *, weights_only: bool,
        of: Sequence[Packed] | None = None,
    ) -> None:  # fmt: skip
        assert isinstance(task, PackTask)
        alive = task.alive()
        fine = [
            one
            for one in (alive if of is None else of)
            if one.failed is None
            and task.mind(one, partial(require_finite_weights, one.run.task, trainer.global_step))
        ]
        task.left()
        self.files.wanted = fine
        trainer.save_checkpoint((self.folder / name).with_suffix(HALF), weights_only=weights_only)
        for one in fine:
            folder = one.run.checkpoints.folder
            if name == LAST and (folder / name).exists():
                os.replace(folder / name, folder / PREVIOUS)
            os.replace((folder / name).with_suffix(HALF), folder / name)
