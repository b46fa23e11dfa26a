"""The runs of a study handed to a launcher, and what became of them, read from their folders."""

import os
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from textwrap import shorten

from hydra.core.plugins import Plugins
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from ablate.errors import Interrupted, RunFailed, UserError, unwrap
from ablate.files import RESULT
from ablate.study.launch.claim import Claim
from ablate.study.launch.state import State, state, state_alone
from ablate.study.plan.cells import Cell

MOVED = "old"  # folder in the study's, for runs that study.rerun=all starts anew
SINCE = ".rerun_all"  # file in the study's folder, made when a study.rerun=all began
LOOK = 2.0  # seconds between looks at runs that another command has
REASONS = 3  # of runs that did not finish, in the last line


def launcher_of(config: DictConfig, context: HydraContext, task: TaskFunction) -> Launcher:
    try:
        return Plugins.instance().instantiate_launcher(
            hydra_context=context, task_function=task, config=config
        )
    except (ImportError, RuntimeError) as error:
        if ours := unwrap(error):
            raise ours from error
        name = config.hydra.runtime.choices.get("hydra/launcher")
        raise UserError(f"hydra/launcher={name}: {' '.join(str(error).split())}") from error


def launch(launcher: Launcher, cells: Sequence[Cell], folder: Path, rerun: str) -> Exception | None:
    """Run what is to be run of these cells, once each, and wait for what others run.

    Returns what the launcher broke with: how the runs ended is read from their folders.
    """
    wanted = to_run(cells, folder, rerun)
    trouble: Exception | None = None
    if wanted:
        try:
            launcher.launch([cell.job for cell in wanted], initial_job_idx=0)
        except (Interrupted, UserError):
            raise
        except Exception as error:
            if isinstance(ours := unwrap(error), Interrupted | UserError):
                raise ours from error
            trouble = error
    while any(state(folder / cell.folder).name in ("queued", "running") for cell in wanted):
        time.sleep(LOOK)
    if trouble is None and any(cell.kind == "run" for cell in cells):  # tuning is half of it
        (folder / SINCE).unlink(missing_ok=True)
    return trouble


def to_run(cells: Sequence[Cell], folder: Path, rerun: str) -> list[Cell]:
    """Those that study.rerun wants, each folder once; those that run elsewhere are waited for."""
    once: dict[str, Cell] = {}
    for cell in cells:
        once.setdefault(cell.folder, cell)
    if rerun == "all":
        move_aside(folder, list(once))
    unwanted = {"finished", "missing"} if rerun == "failed" else {"finished"}
    return [cell for name, cell in once.items() if state(folder / name).name not in unwanted]


def move_aside(folder: Path, names: Sequence[str]) -> None:
    """Clear the place of runs that were there before this study.rerun=all; nothing is lost.

    It begins once: the same command beside it, or after it was killed, goes on with it.
    """
    with open(folder / SINCE, "a") as file:
        began = os.fstat(file.fileno()).st_mtime_ns
    moment = datetime.fromtimestamp(began / 1e9, UTC)
    place = folder / MOVED / moment.strftime("%Y-%m-%dT%H-%M-%S.%f")
    for name in names:
        if not _older(folder / name, began):
            continue
        claim = Claim.take(folder / name, launcher="rerun")
        if claim is None:  # another command is at it now
            continue
        if _older(folder / name, began) and state_alone(folder / name).name != "running":
            place.mkdir(parents=True, exist_ok=True)
            claim.move(place / name)
            claim.release()
        else:
            claim.abandon()
    if done := sum(state_alone(folder / name).name == "finished" for name in names):
        print(
            f"ablate: study.rerun=all goes on: {done} of {len(names)} runs are done since it began"
            f" ({moment:%Y-%m-%d %H:%M} UTC; to begin anew, remove {folder / SINCE})",
            flush=True,
        )


def _older(folder: Path, moment: int) -> bool:
    """Whether what its result says was written by then."""
    try:
        return (folder / RESULT).stat().st_mtime_ns <= moment
    except FileNotFoundError:
        return False


def refuse_unfinished(
    cells: Sequence[Cell], found: Mapping[str, State], trouble: Exception | None
) -> None:
    """Raises RunFailed, in one line, where a run is not finished."""
    first = {cell.folder: cell for cell in reversed(cells)}
    missed = {name: one for name, one in found.items() if one.name != "finished"}
    if not missed:
        return
    lines = []
    for name, one in list(missed.items())[:REASONS]:
        detail = shorten(one.detail, 200, placeholder=" …")
        lines.append(f"[{first[name].arm} seed={first[name].seed}] {one.name} {detail}".rstrip())
    if len(missed) > REASONS:
        lines.append(f"and {len(missed) - REASONS} more")
    if trouble is not None:
        lines.append(f"the launcher said: {' '.join(str(trouble).split())[:200]}")
    raise RunFailed(
        f"{len(missed)} of {len(found)} runs are not finished: {'; '.join(lines)}; the same command"
        " runs them again"
    )
