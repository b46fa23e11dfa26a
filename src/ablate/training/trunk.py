"""One trunk for several budgets: a run that begins at a state of a longer one.

Until its learning rate decays, a training with schedule=wsd does not depend on its length. The
longest run of a study saves its state when each shorter one begins to decay, and the shorter one
trains only the rest (Haegele et al. 2024, section 3, https://arxiv.org/abs/2405.18392).

    checkpoints/branch-RUN_ID.ckpt    of the longer run, for the shorter one with this id: a state
                                      as in last.ckpt, with the best weights until then
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities import rank_zero_only as on_first_process

from ablate.errors import UserError
from ablate.machine.terminal.say import say
from ablate.run_files import BEST, LAST, CorruptFile, refuse_links
from ablate.run_files.checkpoint_io import read_state, read_weights, write_state, write_weights
from ablate.training.checkpoint import Checkpoints
from ablate.training.record import CODE

VERSION = [CODE["source"], str(torch.__version__)]


@dataclass(frozen=True)
class SharedSteps:
    """The steps that a run shares with others of its study.

    trunk: the longer run that it begins at a state of: its `folder`, relative to that of this run,
    its `run_id`, and the `step`. branches: id of a shorter run -> the step after which it begins.
    """

    trunk: dict[str, Any] | None = None
    branches: Mapping[str, int] = field(default_factory=dict)

    def state(self, run_dir: Path, run_id: str) -> Path | None:
        """The file with the state at which this run begins, which may not exist yet."""
        if self.trunk is None:
            return None
        return branch_file(Path(os.path.normpath(run_dir / self.trunk["folder"])), run_id)


def branch_file(run_dir: Path, run_id: str) -> Path:
    return run_dir / "checkpoints" / f"branch-{run_id}.ckpt"


class Branches(Callback):
    """Save the states for shorter runs, of the last.ckpt that `checkpoints` has just saved."""

    def __init__(self, checkpoints: Checkpoints, branches: Mapping[str, int]) -> None:
        self.checkpoints, self.branches = checkpoints, branches
        checkpoints.also = {*branches.values()}

    def on_train_start(self, trainer: Any, *_: Any) -> None:
        # A run that was stopped between the two files is resumed from the first.
        self._save(trainer, again=False)

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        between = trainer.fit_loop.epoch_loop._should_accumulate()  # of an optimizer step
        if self.checkpoints.saved_step == trainer.global_step and not between:
            self._save(trainer)

    on_validation_end = on_train_batch_end  # type: ignore[assignment]

    def _save(self, trainer: Any, *, again: bool = True) -> None:
        folder, run_id = self.checkpoints.folder, self.checkpoints.run_id
        for branch, step in self.branches.items():
            path = branch_file(folder.parent, branch)
            wanted = step == trainer.global_step and (again or not path.exists())
            if wanted and trainer.is_global_zero:
                state = read_state(folder / LAST, run_id)
                best = {} if self.checkpoints.best is None else read_weights(folder / BEST, run_id)
                write_state(path, {**state, "best_weights": best, "version": VERSION}, run_id)


def beginning(
    shared: SharedSteps, checkpoints: Checkpoints, *, first: bool
) -> tuple[Path | None, dict[str, Any]]:
    """Return the checkpoint at which a branch begins, and its content; None after a line about why
    it cannot be used. first: whether this is the first process, which writes the best weights."""
    run_dir, run_id = checkpoints.folder.parent, str(checkpoints.run_id)
    path, trunk = shared.state(run_dir, run_id), shared.trunk
    assert path is not None
    assert trunk is not None
    place = f"step {trunk['step']:,} of {path.parents[1]}"
    try:
        refuse_links(path.parents[1])
        state = read_state(path, trunk["run_id"])
        if state.get("version") != VERSION:
            raise CorruptFile(path, "it is of other code")
    except (UserError, FileNotFoundError) as error:
        why = error if isinstance(error, UserError) else f"{path} is missing"
        on_first_process(say)(f"training from step 0, not from {place}: {why}")
        return None, {}
    if first and (best := state["best_weights"]):
        write_weights(checkpoints.folder / BEST, best, run_id)
    checkpoints.trunk = trunk
    on_first_process(say)(f"beginning after {place}, the same training until then")
    return path, state
