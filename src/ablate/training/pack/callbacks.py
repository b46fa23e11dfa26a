"""Write the curves and checkpoints of a pack while it trains, per seed."""

import os
from collections.abc import Sequence
from functools import partial
from typing import Any

import lightning.pytorch as L
import torch
from lightning.pytorch.callbacks import Callback

from ablate.files import BEST
from ablate.training.checkpoint import HALF, LAST, PREVIOUS, Checkpoints, require_finite_weights
from ablate.training.pack.checkpoint import Folders
from ablate.training.pack.task import Packed, PackTask


class PackCurves(Callback):
    """Log what each task would log by itself, to its own curves and its own loggers."""

    def __init__(self, pack: Sequence[Packed]):
        self.pack = pack
        self._rate = 0.0

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        for one, own in zip(self.pack, batch, strict=True):
            one.run.curves.on_train_batch_start(trainer, one.run.task, own, batch_idx)

        # Learning rate of the coming step; float32, as Lightning keeps logged values.
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
    """Write the checkpoints of a separate run to every folder. Each seed has its own best."""

    def __init__(self, pack: Sequence[Packed], *, every: int):
        first = pack[0].run.checkpoints
        super().__init__(first.folder, every=every, model=first.model)
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

            if pl_module.passes(one, judge):
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
            and task.passes(one, partial(require_finite_weights, one.run.task, trainer.global_step))
        ]
        task.left()
        self.files.wanted = fine
        trainer.save_checkpoint((self.folder / name).with_suffix(HALF), weights_only=weights_only)
        for one in fine:
            folder = one.run.checkpoints.folder
            if name == LAST and (folder / name).exists():
                os.replace(folder / name, folder / PREVIOUS)
            os.replace((folder / name).with_suffix(HALF), folder / name)
