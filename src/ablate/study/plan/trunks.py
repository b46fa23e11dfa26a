"""One trunk for several budgets: which runs of a study begin at a state of a longer one.

Runs share the steps before their learning rates differ, if nothing but their length differs.
Nothing else in a run depends on its length: validations, logged values and the order of the data go
by steps, and their intervals are cut to the length only beyond the end of the shorter run.
"""

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from omegaconf import DictConfig

from ablate.config.keys import resolved, targets
from ablate.config.make import make, unwrap_partial
from ablate.data import Data
from ablate.errors import UserError
from ablate.study.plan.planned_run import PlannedRun
from ablate.training.trainer import length_of_training
from ablate.training.trunk import SharedSteps, branch_file

LEAST = 0.25  # share of the shorter run; a state of fewer steps is not worth its file
# Packages whose components do not read the length of a training.
KNOWN = ("ablate.", "lightning.", "timm.", "torch.", "torchvision.")


def with_trunks(
    cells: Sequence[PlannedRun],
    root: Path,
    sets: Callable[[DictConfig], Data],
    *,
    again: bool,
) -> tuple[list[PlannedRun], list[str]]:
    """The runs, each with the steps that it shares, and the longest before those that begin at its
    states; and lines about the cost. root: that of the folders. again: whether finished runs
    are trained again."""
    alike: dict[str, dict[str, PlannedRun]] = {}
    first = cells[0].seed
    for cell in cells:
        assert cell.resolved is not None
        key = cell.resolved.counted(cell.seed).except_length(cell.seed)
        alike.setdefault(key, {}).setdefault(cell.folder, cell)
    shared: dict[str, SharedSteps] = {}
    reasons: dict[str, int] = {}  # why runs share nothing -> how many
    steps_before = steps_shared = 0
    for group in alike.values():
        if len(group) == 1:
            continue
        steps = {name: _steps(cell, first, sets) for name, cell in group.items()}
        trunk = group[max(group, key=lambda name: steps[name])]
        longest, ended = steps[trunk.folder], not again and trunk.finished(root)
        branches = {}
        for name, cell in group.items():
            if steps[name] == longest or (not again and cell.finished(root)):
                continue
            begin, reason = _shared_steps(cell, steps[name], longest)
            if not reason and ended and not branch_file(root / trunk.folder, cell.run_id).exists():
                reason = "the longest run is finished and has kept no state for them"
            if reason:
                reasons[reason] = reasons.get(reason, 0) + 1
                continue
            branches[cell.run_id] = begin
            there = {"folder": os.path.relpath(trunk.folder, name), "run_id": trunk.run_id}
            shared[name] = SharedSteps({**there, "step": begin})
            steps_before += steps[name]
            steps_shared += begin
        if branches:
            shared[trunk.folder] = SharedSteps(branches=branches)
            steps_before += 0 if ended else longest
    lines = [f"shorter runs train from step 0 ({n}): {reason}" for reason, n in reasons.items()]
    if steps_shared:
        number = sum(each.trunk is not None for each in shared.values())
        lines.append(
            f"shorter runs begin at states of longer ones, equal but for their length ({number}):"
            f" {steps_before - steps_shared:,} steps are trained instead of {steps_before:,}"
            f" ({steps_shared / steps_before:.0%} fewer)"
        )
    planned = [replace(cell, shared=shared.get(cell.folder)) for cell in cells]
    return sorted(planned, key=lambda cell: bool(cell.shared and cell.shared.trunk)), lines


def _steps(cell: PlannedRun, seed: int, sets: Callable[[DictConfig], Data]) -> int:
    assert cell.resolved is not None
    cfg = cell.resolved.cfg
    cfg.seed = seed  # whose data were read for the plan; those of others are as many
    return length_of_training(resolved(cfg)["trainer"], sets(cfg))[0]


def _shared_steps(cell: PlannedRun, steps: int, longest: int) -> tuple[int, str]:
    """The steps that a run shares with one of `longest` steps, or why it shares none."""
    assert cell.resolved is not None
    values = {**resolved(cell.resolved.cfg)}
    schedule = values.pop("schedule")
    if values["choices"].get("debug"):
        return 0, "debug= does not resume"
    for target in targets(values).values():
        if not target.startswith(KNOWN):
            return 0, f"{target} may depend on the length of the training"
    try:
        shared = _agreeing(json.dumps(schedule), steps, longest)
    except UserError as error:
        return 0, str(error)
    if shared < LEAST * steps:
        return 0, (
            f"their learning rate differs from that of the longest run after step {shared:,} of"
            f" {steps:,} (schedule=wsd with a warm-up in steps shares all before the decay)"
        )
    return shared, ""


@cache
def _agreeing(schedule: str, steps: int, longest: int) -> int:
    """The last step after which the states of both trainings are equal. A state has the rate of the
    next step."""
    rate = unwrap_partial(make(json.loads(schedule)))
    differ = (n for n in range(steps) if rate(n, steps) != rate(n, longest))
    return max(0, next(differ, steps) - 1)
