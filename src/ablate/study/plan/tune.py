"""study.tune: each arm gets its own best values before the runs that count.

A value that suits only the baseline would make every other arm look worse than it is. The grid of
all values is run with separate seeds, and a validation metric chooses the point.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from ablate.config.keys import default_of
from ablate.config.overrides import MOST, value_text, variants
from ablate.errors import RunFailed, UserError, few, suggest
from ablate.run_files.shape import schema_error
from ablate.study.analysis import derived
from ablate.study.analysis.folder import Folder
from ablate.study.launch.state import state_of
from ablate.study.plan.cells import Composer, PlannedRuns, with_more
from ablate.study.plan.layout import Layout
from ablate.study.plan.planned_run import PlannedRun

FIRST_SEED = 1000  # study.tune_seeds=2: 1000 and 1001
NOT_TUNED = ("study", "hydra", "logger")


@dataclass(frozen=True)
class Trial:
    """One run of the tuning of an arm: a point of the grid (key -> value), and a seed."""

    point: dict[str, Any]
    seed: int


@dataclass(frozen=True)
class Tuning:
    """The tuning of every arm: the values of each key, and the seeds."""

    keys: dict[str, list[Any]]
    seeds: list[int]

    def trials(self) -> list[Trial]:
        """Every point of the grid, the last key changing first, each with every seed."""
        return [Trial(point, seed) for point in variants(self.keys) for seed in self.seeds]


@dataclass(frozen=True)
class Choice:
    """The best point for an arm, the table that it was chosen from, and warnings.

    rows: for each point its values by seed, their mean, the problems, and whether it was chosen.
    """

    point: dict[str, Any]
    rows: list[dict[str, Any]]
    warnings: list[str]


def tuning(
    keys: Mapping[str, Any],
    tune_seeds: int | Sequence[int],
    *,
    seeds: Sequence[int],
    metric: str,
    taken: Iterable[str],
) -> Tuning | None:
    """Check study.tune and study.tune_seeds; None if nothing is tuned. Raises UserError.

    seeds: those of the study's runs; metric: the study's; taken: keys that the arms set otherwise.
    """
    if not keys:
        if tune_seeds != default_of("study.tune_seeds"):
            raise UserError(
                f"study.tune_seeds={tune_seeds} has no effect without study.tune; leave it out"
            )
        return None
    if not (derived.measured(metric) or "").startswith("val/"):
        raise UserError(
            f"study.metric={metric} with study.tune: values are chosen on the validation split, so"
            " that the test split stays unseen; use study.metric=val/..., or no study.tune"
        )
    taken = set(taken)
    values = {key: _values(key, listed, taken) for key, listed in keys.items()}
    return Tuning(values, _seeds(tune_seeds, seeds))


def _values(key: str, listed: Any, taken: set[str]) -> list[Any]:
    if key == "seed" or key.split(".")[0].split("/")[0] in NOT_TUNED:
        raise UserError(f"study.tune: {key} cannot be tuned per arm")
    if key in taken:
        raise UserError(f"study.tune: {key} is set by the study already; tune another key")
    values = list(listed) if isinstance(listed, Sequence) and not isinstance(listed, str) else []
    if not values:
        raise UserError(f"study.tune: {key}: {listed!r} must be a list of values, [0.001, 0.003]")
    if twice := [value for number, value in enumerate(values) if value in values[:number]]:
        raise UserError(f"study.tune: {key} has the value {value_text(twice[0])} twice")
    return values


def _seeds(tune_seeds: int | Sequence[int], seeds: Sequence[int]) -> list[int]:
    where = f"study.tune_seeds={tune_seeds}"
    if isinstance(tune_seeds, int) and tune_seeds > MOST:
        raise UserError(f"{where}: at most {MOST:,} seeds are possible")
    if isinstance(tune_seeds, int):
        chosen = list(range(FIRST_SEED, FIRST_SEED + tune_seeds))
    else:
        chosen = list(tune_seeds)
    if not chosen:
        raise UserError(f"{where}: at least one seed is needed for study.tune")
    if len(set(chosen)) < len(chosen):
        raise UserError(f"{where}: duplicate seed")
    if both := sorted({*chosen} & {*seeds}):
        raise UserError(
            f"{where}: {both[0]} is one of study.seeds too; values that were chosen on a seed look"
            " better on it than they are"
        )
    return chosen


def choose(
    arm: str,
    trials: Sequence[Trial],
    results: Sequence[Mapping[str, Any] | None],
    *,
    metric: str,
    mode: str,
) -> Choice:
    """Choose the point with the best mean over the seeds; of equal ones the first.

    results: the content of each trial's result.json, None if there is none. A point that lacks a
    run is not chosen: a learning rate that fails with one seed in two is not a good one.
    Raises UserError if no point has all its runs.
    """
    rows = _rows(trials, results, metric)
    complete = [row for row in rows if row["mean"] is not None]
    if not complete:
        reasons = [
            f"{_spelled(row['point'])}, {problem}" for row in rows for problem in row["problems"]
        ]
        raise UserError(
            f"study.tune: arm '{arm}' has no values with all of their runs finished:"
            f" {few(reasons, '; ', 3)}"
        )
    best = (min if mode == "min" else max)(complete, key=lambda row: row["mean"])
    best["chosen"] = True
    return Choice(best["point"], rows, list(_warnings(arm, best["point"], rows)))


def _rows(
    trials: Sequence[Trial], results: Sequence[Mapping[str, Any] | None], metric: str
) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for trial, result in zip(trials, results, strict=True):
        if not rows or rows[-1]["point"] != trial.point:
            rows.append(
                {"point": trial.point, "values": {}, "mean": None, "problems": [], "chosen": False}
            )
        value, problem = _value(result, metric)
        rows[-1]["values"][str(trial.seed)] = value
        if problem:
            rows[-1]["problems"].append(f"seed {trial.seed}: {problem}")
    for row in rows:
        if not row["problems"]:
            row["mean"] = fmean(row["values"].values())
    return rows


def result_with(folder: Path, run_id: str, metric: str) -> Mapping[str, Any] | None:
    """The result of a trial, with the metric if that is read off its curve; None without one."""
    result = state_of(folder, run_id).result
    if not result:
        return None
    value = derived.value(Folder(folder, result), metric)
    return result if value is None else {**result, "metrics": {**result["metrics"], metric: value}}


def _value(result: Mapping[str, Any] | None, metric: str) -> tuple[float | None, str | None]:
    if result is None:
        return None, "was never started"
    if (status := result.get("status")) != "finished":
        return None, f"{status}: {result.get('error') or 'no reason is known'}"
    metrics = result.get("metrics", {})
    value = metrics.get(metric)
    if metric not in metrics:
        return None, f"has no {metric}{suggest(metric, metrics)}"
    if value is None or not math.isfinite(value):
        return None, f"{metric} is not finite"
    return value, None


def edges(point: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    """Yield a remark on each chosen value at an end of its grid."""
    for key, value in point.items():
        grid = {row["point"][key] for row in rows if not schema_error(row["point"][key], float)}
        if not schema_error(value, float) and len(grid) > 1 and value in (min(grid), max(grid)):
            end, further = ("smallest", "smaller") if value == min(grid) else ("largest", "larger")
            yield f"the {end} {key}={value_text(value)}: a {further} one may be better still"


def _warnings(arm: str, point: dict[str, Any], rows: list[dict[str, Any]]) -> Iterable[str]:
    yield from (f"study.tune: arm '{arm}' is best with {edge}" for edge in edges(point, rows))
    for row in rows:
        if row["problems"]:
            yield (
                f"study.tune: arm '{arm}' was tuned without {_spelled(row['point'])}:"
                f" {'; '.join(row['problems'])}"
            )


def as_overrides(point: dict[str, Any]) -> list[str]:
    return [f"{key}={value_text(value)}" for key, value in point.items()]


def _spelled(point: dict[str, Any]) -> str:
    return " ".join(as_overrides(point))


class Trials:
    """The trials of every arm of a layout; empty if nothing is tuned. Arms with equal runs share
    folders. untuned: arm -> why no value could be chosen for it."""

    def __init__(
        self, tuning: Tuning | None, layout: Layout, composer: Composer, cells: PlannedRuns
    ):
        self.layout, self.composer = layout, composer
        self.untuned: dict[str, str] = {}
        self._of: dict[str, list[tuple[Trial, PlannedRun]]] = {}
        known: dict[str, str] = {}
        for trial in tuning.trials() if tuning else []:
            for composed in layout.arms:
                tried = with_more(composed, as_overrides(trial.point), composer)
                cell = cells.of(tried, trial.seed, kind="tune")
                cell = replace(cell, folder=known.setdefault(cell.run_id, cell.folder))
                self._of.setdefault(composed.name, []).append((trial, cell))

    @property
    def cells(self) -> list[PlannedRun]:
        """The cells in launch order: every arm's first trial before any second one."""
        rows = zip(*self._of.values(), strict=True)
        return [cell for row in rows for _, cell in row]

    def choose(self, folder: Path, metric: Mapping[str, str]) -> None:
        """Set the best values in every arm; an arm without a complete point is left out.

        Raises RunFailed if that is the baseline.
        """
        layout = self.layout
        for composed in layout.arms:
            trials, cells = zip(*self._of[composed.name], strict=True)
            results = [
                result_with(folder / cell.folder, cell.run_id, metric["name"]) for cell in cells
            ]
            try:
                choice = choose(
                    composed.name, trials, results, metric=metric["name"], mode=metric["mode"]
                )
            except UserError as error:
                self.untuned[composed.name] = f"{error}; the same command retries them"
                continue
            composed.tuned, composed.tuning = choice.point, choice.rows
            composed.warnings = choice.warnings
        if reason := self.untuned.get(layout.baseline.name):
            raise RunFailed(reason)
        layout.invalid |= self.untuned
        layout.arms[:] = [composed for composed in layout.arms if composed.name not in self.untuned]
        for number, composed in enumerate(layout.arms):
            layout.arms[number] = with_more(composed, as_overrides(composed.tuned), self.composer)
