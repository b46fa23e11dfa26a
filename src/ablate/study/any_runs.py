"""A table of any runs, such as those of outputs/runs: their differences and their metrics.

Runs of no study have neither a baseline nor planned seeds, so the table has no verdict.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from rich.table import Column, Table

from ablate.config.keys import FILES, shown
from ablate.config.saved import names_file, read_yaml, require_unedited
from ablate.config.short_name import differing
from ablate.errors import UserError, suggest
from ablate.machine.terminal.console import Console
from ablate.machine.terminal.say import say
from ablate.run_files import CorruptFile, read_mapping
from ablate.run_files.records import read_result
from ablate.study.metric_words import mode_of
from ablate.study.numbers import certain, counted, duration

CONFIG = "config.yaml"
# Neither a choice of the model nor of its training.
BESIDE = ("study.", "output_dir", "logger", "checkpoint_", "debug", "sweep", "experiment")
FIRST = ("model", "data")  # named above the table if all runs share them
PATHS = tuple(f"data.{key}" for key in FILES)
CONTENT = "data_fingerprint"


def has_runs(folder: Path) -> bool:
    return any(folder.glob("*/result.json"))


def show_runs(folder: Path, metric: str | None = None, mode: str | None = None) -> None:
    """Print a row for each finished run in the folder, the best value of a metric first. UserError
    for a metric that no run has."""
    runs: list[tuple[str, Mapping[str, Any], dict[str, Any]]] = []
    for path in sorted(file.parent for file in folder.glob("*/result.json")):
        result, wrong = read_result(path)
        try:
            with names_file(path / CONFIG):
                require_unedited(path / CONFIG, saved := read_yaml(path / CONFIG))
            config: Any = OmegaConf.to_container(saved)
        except (CorruptFile, OSError, UserError) as error:
            wrong = wrong or str(error)
        if wrong:
            say(f"skipped: {wrong}")
            continue
        if result.get("status") == "finished":
            config["choices"] = config.get("choices") or result["choices"]
            content = {CONTENT: read_mapping(path / "provenance.json").get(CONTENT)}
            runs.append((path.name, result, _words(config) | content))
    if not runs:
        raise UserError(f"{folder} has no finished run")
    names = {name for _, result, _ in runs for name in result["metrics"]}
    if metric is not None and metric not in names:
        raise UserError(f"--metric {metric}: no run has it{suggest(metric, names)}")
    every = [keys for *_, keys in runs]
    differ = {key for keys in every for key in keys if any(_differ(key, keys, o) for o in every)}
    alike = _shown({key: every[0][key] for key in FIRST if key in every[0].keys() - differ})
    table = Table(
        Column("run", overflow="fold"),
        Column("differs", overflow="fold"),
        Column("metric"),
        Column("value", justify="right"),
        Column("steps", justify="right"),
        Column("time", justify="right"),
        title=f"{counted(len(runs), 'finished run')} in {folder}" + (alike and f": {alike}"),
        caption="No verdicts: these runs are not of one study (python -m ablate -m KEY=A,B).",
        title_justify="left",
        caption_justify="left",
    )
    for name, of_run, keys in sorted(runs, key=lambda run: _order(run[1], metric, mode)):
        of = metric or of_run["metric"]["name"]
        value = of_run["metrics"].get(of)
        table.add_row(
            name,
            _shown({key: value for key, value in keys.items() if key in differ}),
            of,
            "-" if value is None else certain(value),
            f"{of_run['steps']:,}",
            duration(of_run["train_seconds"]),
        )
    Console(highlight=False, markup=False).print(table)


def _words(config: Mapping[str, Any]) -> dict[str, Any]:
    choices = config["choices"]
    # Custom ones have no option's name.
    called = {"callbacks": ",".join(config.get("callbacks") or ()) or None}
    files = {key: (config.get("data") or {}).get(key.partition(".")[2]) for key in PATHS}
    keys = {key: choices.get(key) for key in FIRST} | files | differing(config) | called
    keys["seed"] = config.get("seed")
    return {
        key: value
        for key, value in keys.items()
        if value is not None and not key.startswith(BESIDE)
    }


def _differ(key: str, one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Paths differ among runs of the same kind of data, the content among those that agree in the
    rest."""
    if key in PATHS and one.get("data") != other.get("data"):
        return False
    if key == CONTENT and {**one, key: None} != {**other, key: None}:
        return False
    return one.get(key) != other.get(key)


def _shown(keys: Mapping[str, Any]) -> str:
    return " ".join(f"{key}={shown(value)}" for key, value in keys.items())


def _order(
    result: Mapping[str, Any], metric: str | None, mode: str | None
) -> tuple[str, str, float]:
    own = result["metric"]
    of = metric or own["name"]
    value = result["metrics"].get(of)
    best = mode or (own["mode"] if of == own["name"] else mode_of(of))
    sign = -1.0 if best == "max" else 1.0
    return result["choices"].get("data") or "", of, float("inf") if value is None else sign * value
