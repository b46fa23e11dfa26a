"""Progress of a study: a live table on a terminal, else a line per ended run; and the same table
later, from the run folders."""

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ablate.run_files import PLAN
from ablate.run_files.records import read_plan
from ablate.study.launch.estimate import left
from ablate.study.launch.state import State, state, states
from ablate.study.numbers import duration
from ablate.terminal.console import Console
from ablate.terminal.say import printable

SECONDS = 1.0  # between two reads of the folders
ROWS = 20  # runs shown one by one
NAMES = ("finished", "running", "queued", "missing", "failed", "refused")
SHOWN = {"missing": "to do"}
STYLES = {"finished": "green", "running": "bold", "failed": "red", "refused": "red"}


def status_table(study_dir: Path) -> RenderableType:
    """Return the current table of a study; it assumes as many slots as runs are running."""
    found = states(study_dir)
    running = sum(one.name == "running" for one in found.values())
    return _table(Names.of(study_dir), found, slots=running)


@dataclass(frozen=True)
class Names:
    """Names of runs and of the metric from the plan; without a plan, names of folders."""

    labels: Mapping[str, str] = field(default_factory=dict)
    metric: Mapping[str, str] | None = None  # name and mode

    @classmethod
    def of(cls, study_dir: Path) -> "Names":
        plan = read_plan(study_dir)
        if not plan:
            return cls()
        labels = {cell["folder"]: _label(cell) for cell in reversed(plan["cells"])}
        return cls(labels, plan["metric"])

    def label(self, folder: str) -> str:
        return self.labels.get(folder, folder)

    def value(self, one: State) -> tuple[str, float, str] | None:
        """Return name, value and mode of a finished run's metric."""
        metric = self.metric or one.result.get("metric") or {}
        name, mode = metric.get("name"), metric.get("mode")
        found = (one.result.get("metrics") or {}).get(name)
        if one.name != "finished" or not isinstance(found, int | float) or not math.isfinite(found):
            return None
        return str(name), found, str(mode)

    def best(self, found: Mapping[str, State]) -> str | None:
        """Describe the best run, as "val/loss 1.832 (model.attention=dot, seed 1)"; without tuning
        runs."""
        runs = {f: value for f, one in found.items() if (value := self.value(one))}
        runs = {f: value for f, value in runs.items() if not self.label(f).startswith(TUNING)}
        if not runs:
            return None
        lower = next(iter(runs.values()))[2] == "min"
        folder = (min if lower else max)(runs, key=lambda f: runs[f][1])
        name, best, _ = runs[folder]
        return f"{name} {best:.4g} ({self.label(folder)})"


TUNING = "tuning "


def _label(cell: Mapping[str, Any]) -> str:
    name = f"{cell['arm']}, seed {cell['seed']}"
    return f"{TUNING}{name}" if cell["kind"] == "tune" else name


class View:
    """The display of a launcher. slots: runs at once; None: as many as are running now."""

    def __init__(
        self, folders: Sequence[Path], *, slots: int | None, console: Console, live: Live | None
    ):
        study_dir = folders[0].parent
        self._console, self._live, self._slots = console, live, slots
        self._names = Names.of(study_dir)
        self._found = states(study_dir) if (study_dir / PLAN).exists() else {}
        # This launcher will handle these runs, whatever their earlier state.
        self._found |= {folder.name: State("queued") for folder in folders}
        self._shown = -math.inf

    @classmethod
    @contextmanager
    def of(cls, folders: Sequence[Path], *, slots: int | None) -> Iterator["View"]:
        console = Console()
        if not console.is_terminal:
            yield cls(folders, slots=slots, console=console, live=None)
            return
        with Live(console=console, auto_refresh=False) as live:
            view = cls(folders, slots=slots, console=console, live=live)
            yield view
            view._show()

    def update(self, running: Iterable[Path]) -> None:
        """Refresh the running runs, at most once a second, however often it is called."""
        if self._live is None or time.monotonic() < self._shown + SECONDS:
            return
        self._found |= {folder.name: state(folder) for folder in running}
        self._show()

    def ended(self, folder: Path, found: State) -> None:
        self._found[folder.name] = found
        self._say(folder, SHOWN.get(found.name, found.name), found)

    def again(self, folder: Path, found: State) -> None:
        """Show that a failed run is tried again."""
        self._found[folder.name] = State("queued")
        self._say(folder, f"{found.name}, tried again", found)

    def _say(self, folder: Path, what: str, found: State) -> None:
        if self._live is not None:
            return
        over = sum(one.ended for one in self._found.values())
        parts = [f"[{over}/{len(self._found)}] {what}: {self._names.label(folder.name)}"]
        if told := _outcome(self._names, found):
            parts.append(told)
        if (slots := self._at_once()) and (rest := time_left(self._found, slots)):
            parts.append(f"about {rest} left")
        self._console.print(
            "; ".join(parts),
            markup=False,
            highlight=False,
            soft_wrap=True,
        )

    def _show(self) -> None:
        assert self._live is not None
        self._shown = time.monotonic()
        self._live.update(_table(self._names, self._found, slots=self._at_once()), refresh=True)

    def _at_once(self) -> int:
        if self._slots is not None:
            return self._slots
        return sum(one.name == "running" for one in self._found.values())


def _table(names: Names, found: Mapping[str, State], *, slots: int) -> RenderableType:
    """Make a table of running and failed runs, under the counts of all."""
    head = [", ".join(_counts(found.values())) or "no runs"]
    if best := names.best(found):
        head.append(f"best {best}")
    if slots and (rest := time_left(found, slots)):
        head.append(f"about {rest} left")
    told = [f for f, one in found.items() if one.name in STYLES and one.name != "finished"]
    told.sort(key=lambda folder: found[folder].name != "running")
    told += [f for f, one in found.items() if one.name in ("queued", "missing") and one.detail]
    if not told:
        return Text("; ".join(head))
    table = Table("run", "state", "", box=None, pad_edge=False)
    for folder in told[:ROWS]:
        one = found[folder]
        shown = Text(SHOWN.get(one.name, one.name), STYLES.get(one.name, ""))
        table.add_row(
            Text(printable(names.label(folder))), shown, Text(printable(_outcome(names, one)))
        )
    more = [Text(f"and {len(told) - ROWS} more")] if len(told) > ROWS else []
    return Group(Text("; ".join(head)), table, *more)


def _counts(found: Iterable[State]) -> Iterator[str]:
    every = [one.name for one in found]
    for name in NAMES:
        if count := every.count(name):
            yield f"{count:,} {SHOWN.get(name, name)}"


def _outcome(names: Names, one: State) -> str:
    """Describe a run in one line."""
    if one.name == "finished":
        value = names.value(one)
        took = duration(one.result.get("wall_seconds", 0.0))
        return f"{value[0]} {value[1]:.4g} in {took}" if value else f"in {took}"
    parts = [f"step {one.step}/{one.steps}"] if one.step is not None else []
    if one.name == "running" and one.rate:
        parts.append(f"{one.rate:.3g} steps/s")
    return ", ".join([*parts, *filter(None, [one.detail])])


def time_left(found: Mapping[str, State], slots: int) -> str | None:
    """Estimate the time until all are done, `slots` at once; None if unknown, or nothing is left.

    A run takes the median of its arm's finished runs, whose folders share a name; in a new arm, the
    median of all finished runs.
    """
    took: dict[str, list[float]] = {}
    for folder, one in found.items():
        if _took(one):
            took.setdefault(_arm(folder), []).append(one.result["wall_seconds"])
    every = [seconds for arm in took.values() for seconds in arm]
    every = every or [one.steps / one.rate for one in found.values() if one.rate and one.steps]
    needed = [
        _needed(one, median(seconds) if (seconds := took.get(_arm(folder), every)) else None)
        for folder, one in found.items()
        if not one.ended
    ]
    rest = left(sorted(needed, key=lambda s: s is None), slots) if needed else None
    return None if rest is None else duration(round(rest))


def _arm(folder: str) -> str:
    return folder.rpartition("-")[0]


def _took(one: State) -> bool:
    return one.name == "finished" and isinstance(one.result.get("wall_seconds"), int | float)


def _needed(one: State, typical: float | None) -> float | None:
    if one.name == "running" and one.rate and one.steps is not None and one.step is not None:
        return (one.steps - one.step) / one.rate
    return typical
