"""Several seeds of one arm trained as one model: how runs are computed, never what comes out.

Every seed has its own folder and leaves there what a run by itself leaves. Seeds that stand at
different steps, after an accident, go on one by one.
"""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from ablate.errors import RunFailed
from ablate.pack.checkpoint import common
from ablate.pack.loop import Packed, fit
from ablate.pack.trial import at_once, require_batchable
from ablate.train import begun, complete, finished

Told = Callable[[dict[str, Any], Path], None]


def members(cfg: DictConfig, run_dir: Path) -> dict[Path, DictConfig]:
    """Folder -> config of each run: that of `cfg` itself, and those of `study.packed`."""
    others = {Path(folder): seed for seed, folder in cfg.study.packed.items()}
    found = {}
    for folder, seed in {run_dir: cfg.seed, **others}.items():
        own = cfg.copy()
        own.seed, own.study.packed = seed, None
        found[folder] = own
    return found


def train(runs: Mapping[Path, DictConfig], told: Told) -> list[dict[str, Any]]:
    """Train checked configs that differ in their seed, each in its folder; what their result.json
    hold. `told` hears of each when it is done.

    Raises UserError (nothing was started), Interrupted, and RunFailed after all others are done.
    """
    results = {folder: finished(cfg, folder) for folder, cfg in runs.items()}
    failed: list[str] = []
    with ExitStack() as stack:
        pack = []
        for folder, cfg in runs.items():
            if results[folder] is None:
                own = stack.enter_context(ExitStack())
                pack.append(Packed(own.enter_context(begun(cfg, folder)), own))
        step = common([one.run.run_dir for one in pack])
        if len(pack) > 1 and step is None:
            print("ablate: the seeds of this pack stand at different steps and go on one by one")
        elif len(pack) > 1 and step is not None:
            batched = at_once(pack[0].run.cfg)
            if batched:
                require_batchable([one.run.task for one in pack])
            fit(pack, step, batched=batched)
        for one in pack:
            try:
                with one.context:  # what is wrong with it is written into its own folder
                    if one.failed is not None:
                        raise one.failed
                    one.run.result["packed"] = len(pack)
                    complete(one.run)
            except RunFailed as error:
                failed.append(f"seed {one.run.cfg.seed}: {error}")
            else:
                results[one.run.run_dir] = one.run.result
                told(one.run.result, one.run.run_dir)
    if failed:
        raise RunFailed("; ".join(failed))
    return [result for result in results.values() if result is not None]
