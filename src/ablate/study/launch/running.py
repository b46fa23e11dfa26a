"""Pass the runs of a study to a launcher, and read their outcome from their folders."""

import math
import os
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from textwrap import shorten
from typing import Any

import yaml
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn
from hydra.errors import InstantiationException
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from ablate.cli import job
from ablate.config.tree import config_files
from ablate.errors import Interrupted, RunFailed, UserError, few, suggest, unwrap
from ablate.machine.terminal.say import say
from ablate.run_files import RESULT, write_json
from ablate.study.launch.locks import RunLock
from ablate.study.launch.run import ScheduledRun
from ablate.study.launch.state import State, state, state_alone
from ablate.study.numbers import counted
from ablate.study.plan.planned_run import PlannedRun

MOVED = "old"  # subfolder of the study, for runs that study.rerun=all replaces
SINCE = ".rerun_all"  # file in the study's folder while a study.rerun=all is not finished
LOOK = 2.0  # seconds between checks of runs that another command has
REASONS = 3  # unfinished runs with a reason in the last line


def launcher_of(config: DictConfig, context: HydraContext, task: TaskFunction) -> Launcher:
    try:
        return Plugins.instance().instantiate_launcher(
            hydra_context=context, task_function=task, config=config
        )
    except (ImportError, RuntimeError, InstantiationException) as error:
        if ours := unwrap(error):
            raise ours from error
        name = config.hydra.runtime.choices.get("hydra/launcher")
        raise UserError(f"hydra/launcher={name}: {' '.join(str(error).split())}") from error


def refuse_unknown(config: DictConfig) -> None:
    """Raise UserError unless hydra.launcher has the keys of our file with its class, if there is
    one; other files of options may change its values."""
    launcher, name = config.hydra.launcher, config.hydra.runtime.choices.get("hydra/launcher")
    for file in config_files("hydra/launcher/*.yaml"):
        known = yaml.safe_load(file.read_text())
        if launcher.get("_target_") == known["_target_"] or file.stem == name:
            _refuse_unknown(launcher, known, "hydra.launcher", file.stem)


def _refuse_unknown(node: object, known: Mapping[str, Any], path: str, launcher: str) -> None:
    """Also in a node of nodes; in one of values, a person may add some."""
    if not isinstance(node, Mapping | DictConfig):
        raise UserError(f"{path}={node}: must be {{KEY: VALUE, ...}}")
    if unknown := [str(key) for key in node if key not in known]:
        names = [key for key in known if key != "_target_"]
        near = suggest(unknown[0], names) or f"; allowed: {', '.join(names)}"
        raise UserError(f"{path}.{unknown[0]}: no such key of hydra/launcher={launcher}{near}")
    if missing := [key for key in known if key not in node]:
        raise UserError(f"{path}.{missing[0]} is missing; hydra/launcher={launcher} has a default")
    for key, value in known.items():
        if isinstance(value, dict) and all(isinstance(child, dict) for child in value.values()):
            _refuse_unknown(node[key], value, f"{path}.{key}", launcher)


def launch(
    launcher: Launcher, cells: Sequence[PlannedRun], folder: Path, rerun: str
) -> Exception | None:
    """Run those of the cells that `rerun` selects, once each, and wait for runs of other commands;
    study.rerun=all first moves older runs away.

    Returns the launcher's exception, if any: the outcome of the runs is read from their folders.
    """
    if rerun == "all":
        move_aside(folder, list(dict.fromkeys(cell.folder for cell in cells)))
        rerun = "missing"
    wanted = selected(cells, folder, rerun)
    trouble: Exception | None = None
    if wanted:
        try:
            if hasattr(launcher, "train"):  # one of ablate, which is given configurations
                root = Path(os.path.abspath(folder))  # without "..", as in trunk.py
                launcher.train([ScheduledRun(root / r.folder, r) for r in wanted])
            else:
                returned = launcher.launch([run.job(folder) for run in wanted], initial_job_idx=0)
                _record_refusals(wanted, returned, folder)
        except (Interrupted, UserError):
            raise
        except Exception as error:
            if isinstance(ours := unwrap(error), Interrupted | UserError):
                raise ours from error
            trouble = error
        finally:
            job.failures.clear()  # of runs in this process; also in their folders
    while any(state(folder / cell.folder).name in ("queued", "running") for cell in wanted):
        time.sleep(LOOK)
    return trouble


def _record_refusals(
    cells: Sequence[PlannedRun], returned: Sequence[JobReturn], folder: Path
) -> None:
    """Write why a run was rejected that a launcher of Hydra's started in this process."""
    for cell, its in zip(cells, returned, strict=False):
        run_state = cell.state(folder)
        if run_state.name != "missing" or run_state.detail:
            continue
        if isinstance(error := its._return_value, UserError):  # `return_value` prints it
            refused = {"run_id": cell.run_id, "status": "rejected", "error": str(error)}
            (folder / cell.folder).mkdir(parents=True, exist_ok=True)
            write_json(folder / cell.folder / RESULT, {"metrics": {}, **refused})


def selected(cells: Sequence[PlannedRun], folder: Path, rerun: str) -> list[PlannedRun]:
    """Return the cells that study.rerun selects, and those to be measured under further conditions,
    each folder once."""
    once: dict[str, PlannedRun] = {}
    for cell in cells:
        once.setdefault(cell.folder, cell)
    unwanted = {"finished", "missing"} if rerun == "failed" else {"finished"}
    since = folder / SINCE
    began = since.stat().st_mtime_ns if since.exists() else math.inf
    states = {name: cell.state(folder) for name, cell in once.items()}
    return [
        cell
        for name, cell in once.items()
        if states[name].name not in unwanted
        or (states[name].name == "finished" and cell.lacks_conditions(states[name].result))
        or (rerun == "all" and _older(folder / name, began))
    ]


def end_rerun(cells: Sequence[PlannedRun], folder: Path) -> None:
    """End a study.rerun=all if these runs are finished: a later one repeats every run."""
    if all(cell.finished(folder) for cell in cells):
        (folder / SINCE).unlink(missing_ok=True)


def move_aside(folder: Path, names: Sequence[str]) -> None:
    """Move away runs that are older than this study.rerun=all; nothing is deleted.

    The same command at the same time, or after it was killed, continues it instead of starting
    another.
    """
    with open(folder / SINCE, "a") as file:
        began = os.fstat(file.fileno()).st_mtime_ns
    moment = datetime.fromtimestamp(began / 1e9, UTC)
    target = folder / MOVED / moment.strftime("%Y-%m-%dT%H-%M-%S.%f")
    for name in names:
        if not _older(folder / name, began):
            continue
        claim = RunLock.take(folder / name, launcher="rerun")
        if claim is None:  # another command has it now
            continue
        if _older(folder / name, began) and state_alone(folder / name).name != "running":
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            claim.move(target / name)
            claim.release()
        else:
            claim.abandon()
    if done := sum(state_alone(folder / name).name == "finished" for name in names):
        say(
            f"study.rerun=all continues: {done} of {len(names)} runs are done since it began"
            f" ({moment:%Y-%m-%d %H:%M} UTC; to start again, remove {folder / SINCE})"
        )


def _older(folder: Path, moment: float) -> bool:
    try:
        return (folder / RESULT).stat().st_mtime_ns <= moment
    except FileNotFoundError:
        return False


def refuse_unfinished(
    cells: Sequence[PlannedRun],
    states: Mapping[str, State],
    trouble: Exception | None,
    rerun: str,
) -> None:
    """Raise RunFailed, in one line, if a run is not finished."""
    first = {cell.folder: cell for cell in reversed(cells)}
    missed = {name: run_state for name, run_state in states.items() if run_state.name != "finished"}
    if not missed:
        return
    lines = []
    for name, run_state in sorted(missed.items(), key=lambda at: at[1].name == "missing"):
        detail = shorten(run_state.detail, 200, placeholder=" …")
        lines.append(
            f"[{first[name].arm} seed={first[name].seed}] {run_state.name} {detail}".rstrip()
        )
    reasons = few(lines, "; ", REASONS)
    if trouble is not None:
        reasons += f"; the launcher reported: {' '.join(str(trouble).split())[:200]}"
    again = "the same command runs them again"
    if rerun == "failed":
        again = "the same command without study.rerun=failed runs them"
    raise RunFailed(
        f"{len(missed)} of {counted(len(states), 'run')} {'is' if len(missed) == 1 else 'are'} not"
        f" finished: {reasons}; {again}"
    )
