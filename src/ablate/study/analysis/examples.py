"""Differences for each example: how far a verdict rests on the examples that were measured.

The seeds' interval is about other seeds on the same examples; `interval` is about other examples of
the same kind with the same trained models. For each example the losses of an arm and of the
baseline are averaged over the seeds that both have, and their difference is one value of a sample,
whose mean has a t interval. In a study with blocks a seed's value is the mean over them. `crossed`
is about other seeds and other examples. Examples that belong together, such as windows of one text,
make both too narrow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ablate.errors import UserError
from ablate.study.analysis import stats
from ablate.study.analysis.collect import Study, StudyRun


@dataclass(frozen=True)
class OverExamples:
    """difference: mean over examples of the arm's loss minus the baseline's, of a table with items
    of its metric; better: share of the examples on which the arm is better."""

    arm: str
    examples: int
    seeds: int
    difference: float
    interval: stats.Interval | None
    crossed: stats.Interval | None
    better: float


def over_examples(
    study: Study, losses: Callable[[StudyRun], Sequence[float]], mode: str = "min"
) -> tuple[OverExamples, ...]:
    """Of every arm with finished runs. losses: of the examples of a run; mode: whether less or more
    of it is better. Raises UserError for runs that were measured on other examples."""
    read: dict[tuple[Path, str], np.ndarray] = {}
    for run in study.runs:  # those that several arms share are read once
        if run.finished and _key(run) not in read:
            read[_key(run)] = np.array(losses(run))
    rows = []
    for arm in study.others:
        of_arm, base = study.runs_of(arm.name), study.runs_of(study.baseline.name)
        pairs: dict[int, list[np.ndarray]] = {}  # by seed, of each block
        for seed in study.seeds:
            runs = [each[seed] for each in (of_arm, base) if seed in each and each[seed].finished]
            if len(runs) < 2:
                continue
            mine, its = (read[_key(run)] for run in runs)
            if mine.shape != its.shape:
                raise UserError(f"{arm.name} was measured on other examples")
            pairs.setdefault(runs[0].seed, []).append(mine - its)
        if not pairs:
            continue
        if len({len(each) for of_seed in pairs.values() for each in of_seed}) > 1:
            raise UserError(f"{arm.name} was measured on other examples")
        most = max(map(len, pairs.values()))  # a seed counts with all blocks
        by_seed = np.array([np.mean(each, 0) for each in pairs.values() if len(each) == most])
        differences = by_seed.mean(0)
        rows.append(
            OverExamples(
                arm=arm.name,
                examples=len(differences),
                seeds=len(by_seed),
                difference=float(differences.mean()),
                interval=stats.t_interval(differences),
                crossed=stats.crossed_interval(by_seed),
                better=float(((differences < 0) if mode == "min" else (differences > 0)).mean()),
            )
        )
    return tuple(rows)


def _key(run: StudyRun) -> tuple[Path, str]:
    return run.folder, run.run_id
