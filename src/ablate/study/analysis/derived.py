"""Metrics of a finished run besides those in its result.json: its cost, and the cost of reaching a
value.

    cost/seconds, cost/throughput, ...     a figure of result.json
    steps_to:val/loss:2.0                  steps until a validation first reached this value
    tokens_to:..., seconds_to:...,         the tokens, the training time and the operations until
        flops_to:...                       then

A value that is never reached counts as reached at the last step, which is the least that it can be:
the report marks it (`censored`).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite, nan

from ablate.errors import UserError, suggest
from ablate.study.analysis.folder import Folder
from ablate.study.metric_words import mode_of

COSTS: dict[str, tuple[str, ...]] = {
    "cost/seconds": ("train_seconds",),
    "cost/throughput": ("throughput", "value"),
    "cost/memory": ("peak_memory_bytes",),
    "cost/parameters": ("parameters", "total"),
    "cost/flops_per_step": ("flops_per_step",),
    "cost/cache_bytes": ("cache_bytes", "per_token"),
    "cost/state_bytes": ("cache_bytes", "state"),
}
UNITS = ("steps_to", "tokens_to", "seconds_to", "flops_to")


@dataclass(frozen=True)
class Reach:
    """When a run's curve of `metric` first reaches `value`, in a unit of UNITS."""

    unit: str
    metric: str
    value: float

    def step(self, run: Folder) -> int | None:
        """The step of that validation; None if there is none."""
        sign = 1 if mode_of(self.metric) == "min" else -1
        curve = run.curve(self.metric)
        return next((step for step, value in curve if sign * value <= sign * self.value), None)

    def of(self, run: Folder) -> float | None:
        last = run.number("steps")
        if last is None or not run.curve(self.metric):
            return None
        whole = {
            "steps_to": last,
            "tokens_to": run.trained if run.unit == "tokens" else None,
            "seconds_to": run.number("train_seconds"),
            "flops_to": run.training_flops,
        }[self.unit]
        reached = self.step(run)
        return whole if whole is None or reached is None else whole * reached / last


def reach(metric: str) -> Reach | None:
    """Parse UNIT:METRIC:VALUE; None for another metric. UserError for a part that is wrong."""
    unit, colon, rest = metric.partition(":")
    if not colon:
        return None
    name, _, value = rest.rpartition(":")
    if unit not in UNITS:
        raise UserError(f"{metric}: must begin with {', '.join(UNITS)}{suggest(unit, UNITS)}")
    if not name.startswith("val/"):
        raise UserError(
            f"{metric}: only a curve of validation reaches a value, as {unit}:val/loss:2"
        )
    try:
        target = float(value)
    except ValueError:
        target = nan
    if not isfinite(target):
        raise UserError(f"{metric}: {value} is not a number; write {unit}:{name}:2.0")
    mode_of(name)  # UserError if the name does not tell which is better
    return Reach(unit, name, target)


def require_known(metric: str) -> None:
    """UserError for a metric of cost that there is not, or a reach that is wrong."""
    if metric.startswith("cost/") and metric not in COSTS:
        raise UserError(f"{metric}: the costs are {', '.join(COSTS)}{suggest(metric, COSTS)}")
    reach(metric)


def measured(metric: str) -> str | None:
    """The metric of a run that it rests on; None: none."""
    if metric in COSTS:
        return None
    parsed = reach(metric)
    return metric if parsed is None else parsed.metric


def value(run: Folder, metric: str) -> float | None:
    """The value of a metric of a run; None if it has none."""
    if metric in COSTS:
        return run.number(*COSTS[metric])
    parsed = reach(metric)
    return run.number("metrics", metric) if parsed is None else parsed.of(run)


def censored(run: Folder, metric: str) -> bool:
    """Whether the value was never reached."""
    parsed = reach(metric)
    return parsed is not None and parsed.of(run) is not None and parsed.step(run) is None


def mode(metric: str) -> str:
    """Which value is better: less, but for throughput."""
    if metric in COSTS:
        return "max" if metric == "cost/throughput" else "min"
    return "min" if reach(metric) else mode_of(metric)
