"""Learning curves and cost of the arms, as means over seeds."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from ablate.study.analysis import derived
from ablate.study.analysis.collect import Study

TRAINING = "train/loss"


@dataclass(frozen=True)
class Curve:
    """A column of metrics.csv by step: mean and standard deviation over an arm's finished seeds."""

    arm: str
    steps: list[int]
    means: list[float]
    spreads: list[float]
    seeds: int


@dataclass(frozen=True)
class Cost:
    """Cost and metric of an arm, as means over the finished seeds."""

    arm: str
    value: float
    spread: float
    seconds: float | None
    flops: float | None
    parameters: float | None


def curve_column(study: Study, metric: str) -> str:
    """Return the column of metrics.csv for a metric's curve; tests are only made at the end."""
    metric = derived.measured(metric) or ""
    validated = "val/" + metric.split("/", 1)[1] if metric.startswith("test/") else metric
    first = next((run for run in study.runs if run.finished), None)
    if first is None or first.curve(validated):
        return validated
    return str(task_metric(study).get("name", validated))


def task_metric(study: Study) -> Mapping[str, Any]:
    """Return name and mode of the metric that chooses the best weights; empty if not recorded."""
    return next((run.result.get("metric", {}) for run in study.runs if run.finished), {})


def curve_of(study: Study, arm: str, column: str) -> Curve:
    """Average the column over the finished runs that have it; no points if none has."""
    every = [run.curve(column) for run in study.runs_of(arm).values() if run.finished]
    every = [points for points in every if points]
    at: dict[int, list[float]] = {}
    for points in every:
        for step, value in points:
            at.setdefault(step, []).append(value)
    # Only steps that all seeds have, or the mean would jump.
    steps = sorted(step for step, values in at.items() if len(values) == len(every))
    means = [fmean(at[step]) for step in steps]
    return Curve(arm, steps, means, [spread(at[step]) for step in steps], len(every))


def spread(values: Sequence[float]) -> float:
    """Return the standard deviation over seeds; 0 for one seed."""
    return stdev(values) if len(values) > 1 else 0.0


def cost_of(study: Study, arm: str, metric: str) -> Cost | None:
    """None without a value of the metric."""
    values = study.values(arm, metric)
    if not values:
        return None
    runs = [study.runs_of(arm)[seed] for seed in values]
    return Cost(
        arm,
        fmean(values.values()),
        spread([*values.values()]),
        seconds=_mean(run.number("train_seconds") for run in runs),
        flops=_mean(run.training_flops for run in runs),
        parameters=_mean(run.number("parameters", "total") for run in runs),
    )


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
