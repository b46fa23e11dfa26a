"""A table of any runs, such as those of outputs/runs: what differs, and what they measured.

Runs of no study have neither a baseline nor planned seeds, so the table holds no verdict.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.table import Column, Table

from ablate.config.keys import flatten
from ablate.config.overrides import value_text
from ablate.config.saved import read_yaml
from ablate.errors import UserError, suggest
from ablate.run_files import Damaged
from ablate.run_files.records import read_result
from ablate.study.numbers import certain, counted, duration
from ablate.terminal.console import Console

CONFIG = "config.yaml"
# Neither a choice of the model nor of its training.
BESIDE = ("study.", "output_dir", "logger", "checkpoint_every", "debug", "sweep", "experiment")


def has_runs(folder: Path) -> bool:
    return any(folder.glob("*/result.json"))


def show_runs(folder: Path, metric: str | None = None) -> None:
    """Print a row for each finished run in the folder, the best value of a metric first. UserError
    for a metric that no run has."""
    from omegaconf import OmegaConf

    runs: list[tuple[str, Mapping[str, Any], dict[str, Any]]] = []
    for path in sorted(file.parent for file in folder.glob("*/result.json")):
        result: Mapping[str, Any] = read_result(path)[0]
        try:
            config: Any = OmegaConf.to_container(read_yaml(path / CONFIG))
        except (Damaged, OSError, UserError):
            continue
        if result.get("status") == "finished":
            chosen = config.pop("choices", None) or result["choices"]
            # Those of one's own have no option's name.
            called = {"callbacks": ",".join(config.get("callbacks") or ()) or None}
            runs.append((path.name, result, _counted({**flatten(config), **chosen, **called})))
    if not runs:
        raise UserError(f"{folder} has no finished run")
    names = {name for _, result, _ in runs for name in result["metrics"]}
    if metric is not None and metric not in names:
        raise UserError(f"--metric {metric}: no run has it{suggest(metric, names)}")
    table = Table(
        Column("run", overflow="fold"),
        Column("differs", overflow="fold"),
        Column("metric"),
        Column("value", justify="right"),
        Column("steps", justify="right"),
        Column("time", justify="right"),
        title=f"{counted(len(runs), 'finished run')} in {folder}",
        caption="Runs of no study: no baseline, no verdicts. python -m ablate -m KEY=A,B compares.",
        title_justify="left",
        caption_justify="left",
    )
    differ = _differing([keys for *_, keys in runs])
    for name, of_run, keys in sorted(runs, key=lambda run: _order(run[1], metric)):
        of = metric or of_run["metric"]["name"]
        value = of_run["metrics"].get(of)
        table.add_row(
            name,
            " ".join(f"{k}={value_text(keys[k])}" for k in differ if keys.get(k) is not None)
            or "-",
            of,
            "-" if value is None else certain(value),
            f"{of_run['steps']:,}",
            duration(of_run["train_seconds"]),
        )
    Console(highlight=False, markup=False).print(table, markup=False)


def _counted(keys: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: value
        for key, value in keys.items()
        # Without a dot: init_from, callbacks, of which none is a choice, too.
        if (value is not None or "." not in key)
        and not key.startswith(BESIDE)
        and "_target_" not in key
    }


def _differing(runs: list[dict[str, Any]]) -> list[str]:
    """Keys with several values; not those that a group's option brings or lacks."""
    every = dict.fromkeys(key for run in runs for key in run)
    return [key for key in every if len({repr(run[key]) for run in runs if key in run}) > 1]


def _order(result: Mapping[str, Any], metric: str | None) -> tuple[str, str, float]:
    of = metric or result["metric"]["name"]
    value = result["metrics"].get(of)
    sign = -1.0 if result["metric"]["mode"] == "max" else 1.0
    return result["choices"].get("data") or "", of, float("inf") if value is None else sign * value
