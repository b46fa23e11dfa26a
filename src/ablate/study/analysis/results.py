"""Results of other programs as a study: tables, Hydra and Lightning runs, W&B, lm-eval.

Each reader returns values; `study_of` checks them and builds the study that a report needs. Data,
code and budget of these runs are unknown, except for their steps, if a table has them.
"""

from __future__ import annotations

import ast
import csv
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from io import StringIO
from math import nan
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml

from ablate.config.keys import flatten
from ablate.config.saved import names_file
from ablate.errors import UserError, shortened, suggest
from ablate.run_files import LARGEST, PLAN, read_json, read_text
from ablate.run_files.harness import scores
from ablate.study.analysis.collect import Arm, Study, StudyRun
from ablate.study.analysis.examples import OverExamples, over_examples
from ablate.study.metric_words import mode_of
from ablate.study.numbers import listed
from ablate.study.plan.design import arm_named

MODES = {"lower": "min", "higher": "max"}
OPTIONAL = ("metric", "value", "block", "step", "item")  # columns of a table
# A seed inside a name, as in EleutherAI/pythia-160m-seed3, and the name of its key.
SEED = re.compile(r"[-_/.,\s]*(?<![a-z])seed[-_=]?(\d+)", re.IGNORECASE)
SEED_KEY = re.compile(r"(^|[./_])seed(_everything)?$", re.IGNORECASE)
VERSION = re.compile(r"(^|/)(version_\d+|lightning_logs|csv)(?=/|$)")  # folders of CSVLogger
Rows = Sequence[tuple[str, Mapping[str, Any]]]  # place, and cells by column


@dataclass(frozen=True)
class Value:
    """A number of a run. place: for messages; file: for the links of the report."""

    arm: str
    seed: int
    place: str
    file: Path
    metric: str = ""
    value: float = nan
    block: str = ""
    step: int = -1
    item: str = ""
    state: str = "finished"


@dataclass(frozen=True)
class Results:
    """modes: min or max of each metric whose source records it."""

    source: str
    values: Sequence[Value]
    modes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ForeignRun(StudyRun):
    """A run of another program. rows: metrics by step; items: the study's metric by item."""

    rows: Sequence[dict[str, str]] = ()
    items: Mapping[str, float] = field(default_factory=dict)

    def _rows(self) -> list[dict[str, str]]:
        return [*self.rows]


@dataclass(frozen=True)
class Foreign(Study):
    """A study of runs of another program. parts: block -> its study."""

    parts: Mapping[str, Study]

    @cached_property
    def blocks(self) -> dict[str, Study]:
        return dict(self.parts)


def read_results(path: Path, metric: str | None = None, arm: Sequence[str] = ()) -> Results:
    """Read a file or folder. metric: its column in a table; arm: the columns that name the arms."""
    if not path.exists():
        near = suggest(path.name, [p.name for p in path.parent.glob("*")])
        raise UserError(f"{path}: no such file or directory{near}")
    if not path.is_dir():
        return read_rows(*_csv(path), path, metric, arm)
    if arm:
        raise UserError(f"--arm names columns of a table, and {path} is a directory")
    if (path / PLAN).exists():
        raise UserError(f"{path} is a study: python -m ablate.report {path} writes its report")
    if files := sorted(path.rglob("results_*.json")):
        return _lm_eval(path, files)
    if files := sorted(path.rglob("metrics.csv")):
        return Results(str(path), _logged(path, files))
    raise UserError(
        f"{path}: has neither metrics.csv (Hydra, Lightning) nor results_*.json of lm-eval"
    )


def _csv(path: Path) -> tuple[Rows, list[str]]:
    text = read_text(path).removeprefix("\ufeff")  # Excel's mark
    lines = csv.reader(StringIO(text, newline=""), strict=True)
    rows: list[tuple[str, Mapping[str, Any]]] = []
    try:
        columns = next(lines, [])
        for cells in filter(None, lines):
            place = f"{path}, line {lines.line_num}"
            if len(cells) != len(columns):
                raise UserError(f"{place}: has {len(cells)} cells, and line 1 has {len(columns)}")
            rows.append((place, dict(zip(columns, cells, strict=True))))
    except csv.Error as error:
        raise UserError(f"{path}, line {lines.line_num}: {error}") from None
    if len({*columns}) < len(columns):
        raise UserError(f"{path}: has a column twice: {listed(columns, 12)}")
    return rows, columns


def read_rows(
    rows: Rows,
    columns: Sequence[str],
    file: Path,
    metric: str | None = None,
    arm: Sequence[str] = (),
) -> Results:
    """Read a table of a value in each row, or of a column for each metric; also of W&B."""
    if {"summary", "config", "name"} <= {*columns}:
        rows = [(place, _unpacked(place, cells)) for place, cells in rows]
        columns = list(dict.fromkeys(name for _, cells in rows for name in cells))
    wandb = "Name" in columns and ("State" in columns or "arm" not in columns)
    names = [*arm] or ["arm" if "arm" in columns else "Name" if wandb else "arm"]
    for name in names:
        _require(name, columns, file, " (--arm COLUMN names another)")
    if (seed := _seed_key(columns)) is None and not wandb:
        _require("seed", columns, file)
    measured = ["value"]
    if "value" not in columns or (metric in columns and "metric" not in columns):
        rest = [name for name in columns if name not in (*OPTIONAL, *names, seed)]
        ended = [cells for _, cells in rows if not wandb or _state(cells) == "finished"]
        # A metric may lack numbers: it is named when it is judged.
        numeric = [n for n in rest if any(_is_number(cells.get(n)) for cells in ended)]
        if metric is not None:
            _require(metric, rest, file)
            measured = [metric, *(name for name in numeric if name != metric)]
        elif not (measured := rest if len(rest) == 1 else numeric):
            _require("value", columns, file)
    values = []
    for place, cells in rows:
        title, of_title = _without_seed(str(cells["Name"])) if wandb else ("", None)
        words = {n: title if wandb and n == "Name" else _text(cells.get(n)) for n in names}
        found = of_title if seed is None else cells.get(seed)
        if not _text(found) or not all(words.values()):
            raise UserError(f"{place}: has no {'arm' if _text(found) else 'seed'}")
        step = _text(cells.get("step"))
        run = Value(
            arm=" ".join(f"{n}={w}" if len(names) > 1 else w for n, w in words.items()),
            seed=_whole("seed", found, place),
            place=place,
            file=file,
            block=_text(cells.get("block")),
            step=_whole("step", step, place) if step else -1,
            item=_text(cells.get("item")),
            state=_state(cells) if wandb else "finished",
        )
        if run.state != "finished":
            values.append(run)
            continue
        for column in measured:
            if not (_is_number(cells.get(column)) or column == metric or len(measured) == 1):
                continue
            of = _text(cells.get("metric", metric or column)) if column == "value" else column
            values.append(replace(run, metric=of, value=_number(of, cells.get(column), place)))
    whole = {(v.block, v.arm, v.seed) for v in values if v.state == "finished"}
    broken = {(v.block, v.arm, v.seed): v for v in values if v.state != "finished"}
    # Other attempts of a run that has finished, or of one that has not, are not another run.
    values = [
        *(value for key, value in broken.items() if key not in whole),
        *(value for value in values if value.state == "finished"),
    ]
    if names == ["Name"] and len({value.arm for value in values}) == len(rows):
        raise UserError(
            f"{file}: every run has another Name; add --arm COLUMN[,COLUMN], the columns that name"
            f" the arms{_all(columns)}"
        )
    return Results(str(file), values)


def _unpacked(place: str, cells: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of a run whose config and summary are dictionaries, as in the manual of W&B."""
    row = {"Name": cells["name"]}
    for column in ("config", "summary"):
        try:
            # Python's nan is not a literal.
            row |= flatten(ast.literal_eval(re.sub(r"\bnan(?=[,}\]])", "'nan'", cells[column])))
        except (ValueError, SyntaxError, TypeError):
            raise UserError(f"{place}: {column} is not a dictionary") from None
    return {name: cell for name, cell in row.items() if not name.startswith("_")}


def _logged(root: Path, files: Sequence[Path]) -> list[Value]:
    """Read metrics.csv of Hydra or Lightning runs. An arm is named by the settings that differ."""
    settings = {file: _settings(root, file) for file in files}
    shared = set.intersection(*(set(words) for words, _ in settings.values()))
    values: list[Value] = []
    known: dict[tuple[str, int], Path] = {}
    for file, (words, seed) in settings.items():
        arm = " ".join(word for word in words if word not in shared) or "defaults"
        if other := known.get((arm, seed)):
            raise UserError(f"{file}: arm {arm} has seed {seed} twice (also {other})")
        known[arm, seed] = file
        last: dict[tuple[str, int], Value] = {}  # a step may be logged again after training
        for place, row in _csv(file)[0]:
            step = _whole("step", row.get("step") or row.get("epoch") or -1, place)
            for metric in row.keys() - {"step", "epoch"}:
                if cell := row[metric]:
                    read = _number(metric, cell, place)
                    last[metric, step] = Value(arm, seed, place, file, metric, read, step=step)
        values += last.values()
    return values


def _settings(root: Path, file: Path) -> tuple[list[str], int]:
    """KEY=VALUE of a run without its seed, and the seed, which its path may name."""
    above = [folder for folder in file.parents if folder == root or root in folder.parents]
    places = [
        *(folder / ".hydra/overrides.yaml" for folder in above),
        file.with_name("hparams.yaml"),
    ]
    words: list[str] = []
    if source := next((path for path in places if path.is_file() and path.stat().st_size), None):
        with names_file(source):
            content = yaml.safe_load(read_text(source))
        pairs = flatten(content).items() if isinstance(content, dict) else ()
        words = [f"{key}={value}" for key, value in pairs] or [*map(str, content or ())]
    by_key = {word.partition("=")[0].lstrip("+"): word for word in words}
    if (key := _seed_key(by_key)) is not None:
        seed = by_key[key].partition("=")[2]
        return [word for word in words if word != by_key[key]], _whole("seed", seed, str(source))
    path = VERSION.sub("", file.parent.relative_to(root).as_posix())
    name, of_path = _without_seed(path)
    if of_path is None:
        raise UserError(f"{file}: no seed in {source or 'hparams.yaml'} and in its path")
    return [*words, *filter(None, [name])], of_path


def _lm_eval(root: Path, files: Sequence[Path]) -> Results:
    """Read results of lm-evaluation-harness. An arm is a model, without the seed in its name."""
    values: list[Value] = []
    modes: dict[str, str] = {}
    for file in files:
        try:
            content = read_json(file)
            config = content["config"]
            model = config.get("model_args") or content["model_name"]
            if config.get("model") == "ablate":  # of ablate.lm_eval
                arm, seed = model["arm"], model["seed"]
            elif isinstance(model, dict):
                arm, seed = _without_seed(",".join(f"{k}={v}" for k, v in model.items()))
            else:
                arm, seed = _without_seed(model)
            seed = _whole("seed", config["random_seed"] if seed is None else seed, str(file))
            for task, name, metric, value in scores(content["results"]):
                if not _is_number(value):
                    continue
                higher = content.get("higher_is_better", {}).get(task) or {}
                if name in higher:
                    modes[metric] = "max" if higher[name] else "min"
                values.append(Value(arm, seed, str(file), file, metric, float(value)))
        except (KeyError, TypeError, AttributeError) as error:
            why = f"{type(error).__name__}: {error}"
            raise UserError(f"{file}: is not a file of results of lm-eval ({why})") from None
    return Results(str(root), values, modes)


def study_of(
    results: Results,
    folder: Path,
    *,
    baseline: str,
    metric: str | None = None,
    better: str | None = None,
    claims: Sequence[Mapping[str, Any]] = (),
    command: Sequence[str] = (),
) -> Foreign:
    """Check the results and make a study of them. folder: of its report."""
    source, values = results.source, results.values
    names = list(dict.fromkeys(value.metric for value in values if value.metric))
    if not names:
        raise UserError(f"{source}: has no finished run with a value")
    if metric is None and len(names) > 1:
        raise UserError(f"{source}: has several metrics ({listed(names, 12)}); add --metric NAME")
    if metric is not None and metric not in names:
        raise UserError(f"--metric {metric}: not in {source}{suggest(metric, names)}{_all(names)}")
    metric = metric or names[0]
    _require_sound(values, metric)
    arms = list(dict.fromkeys(value.arm for value in values))
    baseline = arm_named(baseline, arms, "--baseline")
    seeds = sorted({value.seed for value in values})
    if len(arms) < 2 or len(seeds) < 2:
        few = f"arm, {arms[0]}" if len(arms) < 2 else f"seed, {seeds[0]}; a verdict needs three"
        raise UserError(f"{source}: has only one {few}")
    blocks = list(dict.fromkeys(value.block for value in values if value.block))
    if blocks and (wrong := [value for value in values if not value.block]):
        raise UserError(f"{wrong[0].place}: needs a block, as other rows have one")
    plan = {
        "study": Path(source).stem,
        "source": source,
        "seeds": seeds,
        "metric": {"name": metric, "mode": better_of(metric, better, results.modes)},
        "arms": [{"name": arm, "is_baseline": arm == baseline} for arm in arms],
        "command": list(command),
    }
    built = tuple(Arm(arm, is_baseline=arm == baseline) for arm in arms)
    runs = tuple(_records(values, metric))
    of_block = {
        name: tuple(replace(run, block="") for run in runs if run.block == name) for name in blocks
    }
    parts = {name: Foreign(folder, plan, built, of_block[name], (), {}) for name in blocks}
    made = [{"claim": c, "made": "", "after": False, "dropped": False} for c in claims]
    more = {"blocks": {"factor": "block", "of": {b: {} for b in blocks}}} if blocks else {}
    return Foreign(folder, plan | {"claims": made} | more, built, runs, (), parts)


def _require_sound(values: Iterable[Value], metric: str) -> None:
    """Raise UserError for a value of the metric that is not finite, and for a repeated one."""
    known: dict[tuple[Any, ...], str] = {}
    for v in values:
        if v.metric == metric and not abs(v.value) <= LARGEST:
            raise UserError(
                f"{v.place}: {metric} is {v.value} (arm {v.arm}, seed {v.seed}); a run without a"
                " number cannot be judged: leave it out, and add --allow seeds"
            )
        key = (v.block, v.arm, v.seed, v.metric, v.step, v.item)
        if key in known:
            also = f" (also {known[key]})" if known[key] != v.place else ""
            raise UserError(f"{v.place}: arm {v.arm} has seed {v.seed} twice{also}")
        known[key] = v.place


def _records(values: Sequence[Value], metric: str) -> Iterator[ForeignRun]:
    """Yield each run. The value of a metric is that of its last step."""
    runs: dict[tuple[str, str, int], list[Value]] = {}
    for value in values:
        runs.setdefault((value.block, value.arm, value.seed), []).append(value)
    for (block, arm, seed), of in runs.items():
        at: dict[int, dict[str, dict[str, float]]] = {}  # step -> metric -> item -> value
        for v in of:
            if v.metric and abs(v.value) <= LARGEST:
                at.setdefault(v.step, {}).setdefault(v.metric, {})[v.item] = v.value
        steps = sorted(at)
        last = {name: items for step in steps for name, items in at[step].items()}
        state = next((v.state for v in of if v.state != "finished"), "finished")
        result: dict[str, Any] = {}
        if state == "finished":
            result["metrics"] = {name: fmean(items.values()) for name, items in last.items()}
            result |= {"steps": steps[-1]} if steps[-1:] > [-1] else {}
        yield ForeignRun(
            arm=arm,
            seed=seed,
            block=block,
            run_id="/".join(filter(None, [block, arm, str(seed)])),
            overrides=(),
            state=state,
            detail="",
            provenance={},
            folder=of[0].file,
            result=result,
            rows=[
                {"step": str(step)} | {n: repr(fmean(i.values())) for n, i in at[step].items()}
                for step in steps
                if step >= 0
            ],
            items={item: v for item, v in last.get(metric, {}).items() if item},
        )


def over_items(study: Foreign) -> tuple[OverExamples, ...]:
    """The differences over the items of a table; empty without items."""
    runs = [run for run in study.runs if isinstance(run, ForeignRun) and run.finished]
    items = {run.run_id: run.items for run in runs}
    order = sorted({item for of in items.values() for item in of})
    if lacking := [run for run, of in items.items() if len(of) < len(order)]:
        raise UserError(f"{study.source}: run {lacking[0]} (arm/seed) lacks items that others have")
    if not order:
        return ()
    return over_examples(study, lambda run: [items[run.run_id][i] for i in order], study.mode)


def better_of(metric: str, better: str | None, known: Mapping[str, str]) -> str:
    """min or max: as the user sets, the source records, or the name of the metric tells."""
    if better is not None:
        return MODES[better]
    try:
        return known.get(metric) or mode_of(metric)
    except UserError:
        raise UserError(
            f"{metric}: its name does not tell which is better: add --better lower or higher"
        ) from None


def _require(name: str, columns: Collection[str], file: Path, more: str = "") -> None:
    if name not in columns:
        near = suggest(name, columns)
        raise UserError(f"{file}: has no column {name}{more}{near}{_all(columns)}")


def _all(names: Iterable[str]) -> str:
    return f" (there: {listed(names, 12)})"


def _seed_key(names: Iterable[str]) -> str | None:
    found = [name for name in names if SEED_KEY.search(name)]
    return "seed" if "seed" in found else found[0] if len(found) == 1 else None


def _without_seed(name: str) -> tuple[str, int | None]:
    found = SEED.search(name)
    return SEED.sub("", name, count=1).strip("-_/., "), int(found[1]) if found else None


def _text(cell: Any) -> str:
    """ "" of an empty cell, which pandas reads as NaN."""
    return "" if cell is None or cell != cell else str(cell).strip()


def _state(cells: Mapping[str, Any]) -> str:
    """Of a run in an export of W&B."""
    return _text(cells.get("State")) or "finished"


def _is_number(cell: Any) -> bool:
    try:
        return abs(float(cell)) <= LARGEST
    except (TypeError, ValueError):
        return False


def _number(name: str, cell: Any, place: str) -> float:
    try:
        return float(cell)
    except (TypeError, ValueError):
        raise UserError(f"{place}: {name} is not a number: {shortened(str(cell), 40)!r}") from None


def _whole(name: str, cell: Any, place: str) -> int:
    if str(cell).strip().removeprefix("-").isdecimal():
        return int(cell)
    value = _number(name, cell, place)
    if value % 1 != 0:  # also NaN
        raise UserError(f"{place}: {name} is not an integer: {cell}")
    return int(value)
