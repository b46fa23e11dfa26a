"""Train several seeds of one arm as one model; this changes how runs are computed, not the results.

Every seed has its own folder, with the files of a separate run. Seeds without a common checkpoint
step, as after a crash, are trained one by one.
"""

import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from ablate.cli.say import say
from ablate.errors import Interrupted, RunFailed, UserError
from ablate.training.checkpoint import LAST
from ablate.training.pack.callbacks import PackCheckpoints, PackCurves
from ablate.training.pack.checkpoint import common
from ablate.training.pack.task import PackData, Packed, PackTask
from ablate.training.pack.trial import at_once, device_of, require_batchable, require_settings
from ablate.training.progress import ProgressFile
from ablate.training.train import complete, finished, open_run
from ablate.training.trainer import make_trainer

OnFinished = Callable[[dict[str, Any], Path], None]


def members(cfg: DictConfig, run_dir: Path) -> dict[Path, DictConfig]:
    """Map the folder of each run to its config: `cfg` itself and those of `study.packed`."""
    others = {Path(folder): seed for seed, folder in cfg.study.packed.items()}
    found = {}
    for folder, seed in {run_dir: cfg.seed, **others}.items():
        own = cfg.copy()
        own.seed, own.study.packed = seed, None
        found[folder] = own
    return found


def train(runs: Mapping[Path, DictConfig], on_finished: OnFinished) -> list[dict[str, Any]]:
    """Train checked configs that differ only in their seed, each in its folder.

    Returns the contents of result.json; `on_finished` is called after each run trained here.
    Raises UserError (nothing was started), Interrupted, and RunFailed after all others are done.
    """
    for cfg in runs.values():
        require_settings(cfg)
    results = {folder: finished(cfg, folder) for folder, cfg in runs.items()}
    failed: list[str] = []
    refused: UserError | None = None
    with ExitStack() as stack:
        pack = []
        for folder, cfg in runs.items():
            if results[folder] is None:
                own = stack.enter_context(ExitStack())
                try:
                    pack.append(Packed(own.enter_context(open_run(cfg, folder)), own))
                except UserError as error:  # for example, another process is training it
                    refused = error
                    failed.append(f"seed {cfg.seed}: {error}")
        if refused is not None and not pack:
            raise refused
        train_together(pack)
        for one in pack:
            run = one.run
            try:
                with one.context:  # records an error in the run's own folder
                    if one.failed is not None:
                        raise one.failed
                    complete(run)
                    share_time(run.result, len(pack))
            except Interrupted:
                raise
            except Exception as error:
                if not isinstance(error, RunFailed):
                    traceback.print_exc()
                failed.append(f"seed {run.cfg.seed}: {error}")
            else:
                results[run.run_dir] = run.result
                on_finished(run.result, run.run_dir)
    if failed:
        raise RunFailed("; ".join(failed))
    return [result for result in results.values() if result is not None]


def train_together(pack: Sequence[Packed]) -> None:
    """Train the steps that the seeds have in common; `complete` does what is left of each."""
    if len(pack) < 2:
        return
    step = common([one.run.checkpoints for one in pack])
    if step is None:
        say("the seeds of this pack stand at different steps and are trained one by one")
        return
    cfg = pack[0].run.cfg
    batched = at_once(cfg)
    if batched:
        require_batchable([one.run.task for one in pack], device_of(cfg))
    fit(pack, step, batched=batched)


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
        trainer.fit(task, datamodule=PackData(pack), ckpt_path=path)
    except RunFailed:
        if not all(one.failed for one in pack):
            raise
    finally:
        task.separate()


def share_time(result: dict[str, Any], seeds: int) -> None:
    """Divide the pack's training time among its seeds, and scale the throughput to match."""
    if seeds > 1:
        result["packed"] = seeds
        result["train_seconds"] /= seeds
        result["throughput"]["value"] *= seeds
