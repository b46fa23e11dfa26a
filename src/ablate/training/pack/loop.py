"""The training of a pack: one Trainer for all its seeds."""

from collections.abc import Sequence

from ablate.errors import RunFailed
from ablate.training.checkpoint import LAST
from ablate.training.pack.callbacks import PackCheckpoints, PackCurves
from ablate.training.pack.task import PackData, Packed, PackTask
from ablate.training.progress import ProgressFile
from ablate.training.trainer import make_trainer


def fit(pack: Sequence[Packed], step: int, *, batched: bool) -> None:
    """Train all seeds from `step` to the end, or until all have failed."""
    first = pack[0].run
    task = PackTask(pack, batched=batched)
    checkpoints = PackCheckpoints(pack, every=first.cfg.checkpoint_every)
    progress = [ProgressFile(one.run.run_dir) for one in pack]
    trainer = make_trainer(
        first.cfg, first.run_dir, first.data, [PackCurves(pack), checkpoints, *progress]
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
