"""Differences for each example: how far a verdict rests on the examples that were measured.

The seeds' interval says what other seeds would give on the same examples; this one says what other
examples of the same kind would give with the same trained models. For each example the losses of an
arm and of the baseline are averaged over the seeds that both have, and their difference is one
value of a sample, whose mean has a t interval. Examples that belong together, such as windows of
one text, make it too narrow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ablate.errors import UserError
from ablate.study.analysis import stats
from ablate.study.analysis.collect import Study


@dataclass(frozen=True)
class OverExamples:
    """difference: mean over examples of the arm's loss minus the baseline's; better: share of the
    examples on which the arm has the smaller loss."""

    arm: str
    examples: int
    seeds: int
    difference: float
    interval: stats.Interval | None
    better: float


def over_examples(
    study: Study, losses: Callable[[Path], Sequence[float]]
) -> tuple[OverExamples, ...]:
    """Of every arm with finished runs. losses: of the examples, by the folder of a run. Raises
    UserError for runs that were measured on other examples."""
    read = {
        run.folder: np.array(losses(run.folder)) for run in study.runs if run.finished
    }  # runs that several arms share are read once
    rows = []
    for arm in study.others:
        of_arm, base = study.runs_of(arm.name), study.runs_of(study.baseline.name)
        pairs = [
            (read[of_arm[seed].folder], read[base[seed].folder])
            for seed in study.seeds
            if seed in of_arm and seed in base
            and of_arm[seed].finished and base[seed].finished
        ]  # fmt: skip
        if not pairs:
            continue
        if len({len(side) for pair in pairs for side in pair}) > 1:
            raise UserError(f"--examples: {arm.name} was measured on other examples")
        differences = np.mean([a - b for a, b in pairs], axis=0)
        rows.append(
            OverExamples(
                arm=arm.name,
                examples=len(differences),
                seeds=len(pairs),
                difference=float(differences.mean()),
                interval=stats.t_interval(differences),
                better=float((differences < 0).mean()),
            )
        )
    return tuple(rows)
