"""Check and train one run from the command line, and report errors."""

import logging
import os
import time
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig, read_write
from omegaconf.errors import OmegaConfBaseException

from ablate.cli.command import report
from ablate.config.check import check_alone, check_direction, seeds_of, value_of
from ablate.config.composition import Composition, as_typed, finalize
from ablate.config.keys import interpolations, to_dict
from ablate.errors import RunFailed, UserError, one_line, unwrap
from ablate.machine.memory import freeze_imports
from ablate.run_files import refuse_links

log = logging.getLogger(__name__)
IMPORTED = time.perf_counter()

# Errors of a sweep's runs in this process: (overrides, error).
failures: list[tuple[str, UserError | RunFailed]] = []


def job(cfg: DictConfig) -> float | None:
    """Train; return the metric's value, which search sweepers optimize.

    An error ends the process for a single run; in a sweep the other runs continue.
    """
    hydra = HydraConfig.get()
    # A sweep may train several runs in this process.
    began = time.perf_counter() - (process_seconds() if hydra.mode == RunMode.RUN else 0.0)
    try:
        finalize(cfg, hydra)  # type: ignore[arg-type]
        typed = as_typed(hydra.overrides.task)
        if hydra.mode == RunMode.RUN:
            typed += as_typed(hydra.overrides.hydra)
        searched = hydra.mode == RunMode.MULTIRUN and cfg.study.arm is None
        with interpolations():
            study = to_dict(cfg.study)
            check_alone(study, typed, searched=searched)
            check_direction(hydra.sweeper, cfg.task)
        seeds = seeds_of(study["seeds"]) if searched else ()
        composition = Composition(cfg)
        from ablate.cli.summary import show_result
        from ablate.training.train import folder_of, on_first_process, train

        freeze_imports()
        if len(seeds) < 2:
            with folder_of(composition) as run_dir:
                with read_write(hydra):  # type: ignore[arg-type]
                    # Lightning starts its processes with it
                    hydra.run.dir = str(run_dir)
                result = train(composition, run_dir, began)
                on_first_process(show_result)(result, run_dir, composition.cfg)
            return value_of(result)
        values = []
        for seed in seeds:  # a trial of a search is the mean over its seeds
            own = cfg.copy()
            own.seed, own.study.seeds = seed, 1  # as in ablate.run of its config.yaml
            of_seed = Composition(own)
            with folder_of(of_seed) as run_dir:
                values.append(value_of(train(of_seed, run_dir)))
        known = [value for value in values if value is not None]
        return sum(known) / len(known) if len(known) == len(values) else None
    except Exception as error:
        if hydra.mode == RunMode.MULTIRUN:
            raise _logged(error) from error
        raise SystemExit(report(error)) from None


class Links(Callback):
    """Reject a folder of runs with links that lead out of it, before Hydra writes there."""

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        try:
            refuse_links(Path(str(config.hydra.sweep.dir)))
        except OmegaConfBaseException:
            return  # Hydra raises the same error
        except UserError as error:  # Hydra passes on no Exception of a callback
            raise SystemExit(report(error)) from None


def process_seconds() -> float:
    """Return the age of this process in seconds; if the system does not tell, the time since it
    imported ablate."""
    try:
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    except OSError:  # not Linux; there no process is a fork of one that imported this before
        return time.perf_counter() - IMPORTED
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


def _logged(error: Exception) -> UserError | RunFailed:
    """Log the error of one run of a sweep in its folder, and keep it for the end."""
    ours = unwrap(error)
    overrides = " ".join(as_typed(HydraConfig.get().overrides.task))
    if isinstance(ours, UserError | RunFailed):
        log.error("%s: %s", "rejected" if isinstance(ours, UserError) else "failed", one_line(ours))
    else:
        log.exception("failed: %s", overrides)
        ours = RunFailed(f"{type(error).__name__}: {error}")
    failures.append((overrides, ours))
    return ours
