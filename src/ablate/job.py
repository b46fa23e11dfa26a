"""One run of the command line: checked, trained, and its end reported."""

import atexit
import gc
import logging
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from ablate.check import check, check_alone
from ablate.config.compose import add_choices
from ablate.errors import Interrupted, RunFailed, UserError, unwrap
from ablate.folder import remove_made
from ablate.objective import check_direction, value_of

FULL_ERROR = "HYDRA_FULL_ERROR"
TYPED = os.environ.get(FULL_ERROR)  # as the person set it; the command line sets its own

log = logging.getLogger(__name__)

# What went wrong in the runs of a sweep that run in this process: (overrides, error).
failures: list[tuple[str, UserError | RunFailed]] = []


def job(cfg: DictConfig) -> float | None:
    """Trains; returns the metric's value, which a sweeper that searches looks at.

    A run by itself that goes wrong ends the process; a run of a sweep leaves the others their turn.
    """
    hydra = HydraConfig.get()
    add_choices(cfg, hydra.runtime.choices)
    try:
        with full_error(TYPED):  # Lightning starts further processes with this environment
            alone = hydra.overrides.hydra if hydra.mode == RunMode.RUN else []
            check_alone(cfg, [*alone, *hydra.overrides.task])
            check(cfg)
            check_direction(hydra.sweeper, cfg.task)
            from ablate.summary import show_result
            from ablate.training.train import on_first_process, train

            gc.freeze()  # what was imported stays
            # Else modules bound by nanobind, Triton's among them, report all they hold as leaked.
            atexit.register(gc.unfreeze)
            gc.enable()
            run_dir = Path(hydra.runtime.output_dir)
            if cfg.study.packed:
                from ablate import pack

                pack.train(pack.members(cfg, run_dir), show_result)
                return None
            result = train(cfg, run_dir)
            on_first_process(show_result)(result, run_dir)
            return value_of(result)
    except Exception as error:
        if hydra.mode == RunMode.MULTIRUN and not isinstance(unwrap(error), Interrupted):
            raise _kept_apart(error) from error
        raise SystemExit(report(error)) from None


def report(error: Exception) -> int:
    """Prints how a run ended and returns the exit code."""
    ours = unwrap(error)
    if ours is None or TYPED == "1":
        traceback.print_exception(error)
    if ours is None:
        return 1
    # Of the processes of a node, which fail alike, one says so.
    if os.environ.get("LOCAL_RANK", "0") == "0":
        print(f"ablate: {_line(ours)}", file=sys.stderr)
    if isinstance(ours, UserError):
        remove_made()
    codes = {UserError: 2, RunFailed: 1, Interrupted: 130}
    return next(code for kind, code in codes.items() if isinstance(ours, kind))


@contextmanager
def full_error(value: str | None) -> Iterator[None]:
    """Sets HYDRA_FULL_ERROR; with "1" Hydra hands exceptions on and prints nothing itself."""
    before = os.environ.pop(FULL_ERROR, None)
    if value is not None:
        os.environ[FULL_ERROR] = value
    try:
        yield
    finally:
        os.environ.pop(FULL_ERROR, None)
        if before is not None:
            os.environ[FULL_ERROR] = before


def _kept_apart(error: Exception) -> UserError | RunFailed:
    """The error of one run in a sweep: logged in its folder, kept for the end."""
    ours = unwrap(error)
    overrides = " ".join(HydraConfig.get().overrides.task)
    if isinstance(ours, UserError | RunFailed):
        log.error("%s: %s", "refused" if isinstance(ours, UserError) else "failed", _line(ours))
    else:
        log.exception("failed: %s", overrides)
        ours = RunFailed(f"{type(error).__name__}: {error}")
    failures.append((overrides, ours))
    return ours


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
