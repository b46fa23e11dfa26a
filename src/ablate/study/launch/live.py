"""Progress of a study: a live table on a terminal, else a line per ended run; and the same table
later, from the run folders."""

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ablate.machine.terminal.console import Console
from ablate.machine.terminal.say import printable
from ablate.run_files import PLAN
from ablate.run_files.records import read_plan
from ablate.study.launch.estimate import Durations
from ablate.study.launch.state import State, state, states
from ablate.study.numbers import duration

SECONDS = 1.0  # between two reads of the folders
ROWS = 20  # runs shown one by one
NAMES = ("finished", "running", "queued", "missing", "failed", "rejected")
SHOWN = {"missing": "to do"}
STYLES = {"finished": "green", "running": "bold", "failed": "red", "rejected": "red"}


def status_table(study_dir: Path) -> RenderableType:
    """Return the current table of a study."""
    return _table(Names.of(study_dir), states(study_dir), None)


@dataclass(frozen=True)
class Names:
    """Names of runs, their arms and FLOPs, and the metric, from the plan; without a plan, names of
    folders."""

    labels: Mapping[str, str] = field(default_factory=dict)
    metric: Mapping[str, str] | None = None  # name and mode
    arms: Mapping[str, str] = field(default_factory=dict)  # by folder, each block has its own
    flops: Mapping[str, float] = field(default_factory=dict)  # of the training of an arm

    @classmethod
    def of(cls, *study_dirs: Path) -> "Names":
        """Of a study, or of the blocks of one, with the names of these."""
        plans = {path.name: plan for path in study_dirs if (plan := read_plan(path))}
        parts = {
            block: plan
            for path in study_dirs
            for block, of in (plans.get(path.name, {}).get("blocks") or {"of": {}})["of"].items()
            if (plan := read_plan(path / of["folder"]))
        }
        cells = [
            (cell, cell.get("block", name))
            for name, plan in plans.items()
            for cell in reversed(plan["cells"])
        ]
        several = bool(parts) or len(study_dirs) > 1
        labels = {cell["folder"]: _label(cell) + f", {block}" * several for cell, block in cells}
        arms = {cell["folder"]: f"{cell['arm']} {block}" for cell, block in cells}
        flops = {
            f"{arm['name']} {block}": arm["flops_per_step"] * arm["steps"]
            for block, plan in {**plans, **parts}.items()
            for arm in plan["arms"]
            if arm.get("flops_per_step") and arm.get("steps")
        }
        return cls(labels, next((plan["metric"] for plan in plans.values()), None), arms, flops)

    def label(self, folder: str) -> str:
        return self.labels.get(folder, folder)

    def time_left(self, states: Mapping[str, State], slots: int | None) -> list[str]:
        """In words; empty if unknown. slots: runs at once; None: as many as are running."""
        to_do = [folder for folder, state in states.items() if not state.ended]
        running = sum(state.name == "running" for state in states.values())
        durations = Durations(states, self.arms, self.flops)
        rest = durations.left(to_do, running if slots is None else slots)
        return [f"about {rest} left"] if rest else []

    def value(self, state: State) -> tuple[str, float, str] | None:
        """Return name, value and mode of a finished run's metric."""
        metric = self.metric or state.result.get("metric") or {}
        name, mode = metric.get("name"), metric.get("mode")
        value = (state.result.get("metrics") or {}).get(name)
        if state.name != "finished" or value is None or not math.isfinite(value):
            return None
        return str(name), value, str(mode)

    def best(self, states: Mapping[str, State]) -> str | None:
        """Describe the best run, as "val/loss 1.832 (model.attention=dot, seed 1)"; without tuning
        runs."""
        runs = {
            folder: value
            for folder, state in states.items()
            if (value := self.value(state)) and not self.label(folder).startswith(TUNING)
        }
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
        study_dirs = list(dict.fromkeys(folder.parent for folder in folders))
        own = {folder.name for folder in folders}
        self._console, self._live, self._slots = console, live, slots
        self._names = Names.of(*study_dirs)
        self._states: dict[str, State] = {}
        for study_dir in study_dirs:
            known = states(study_dir) if (study_dir / PLAN).exists() else {}
            # This command does not start other runs that are missing.
            self._states |= {f: s for f, s in known.items() if f in own or s.name != "missing"}
        # This launcher will handle these runs, regardless of their earlier state.
        self._states |= {name: State("queued") for name in own}
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
        self._states |= {folder.name: state(folder) for folder in running}
        self._show()

    def ended(self, folder: Path, state: State) -> None:
        self._states[folder.name] = state
        self._say(folder, SHOWN.get(state.name, state.name), state)

    def again(self, folder: Path, state: State) -> None:
        """Show that a failed run is tried again."""
        self._states[folder.name] = State("queued")
        self._say(folder, f"{state.name}, tried again", state)

    def _say(self, folder: Path, what: str, state: State) -> None:
        if self._live is not None:
            return
        ended = sum(each.ended for each in self._states.values())
        parts = [f"[{ended}/{len(self._states)}] {what}: {self._names.label(folder.name)}"]
        if outcome := _outcome(self._names, state):
            parts.append(outcome)
        parts += self._names.time_left(self._states, self._slots)
        self._console.print("; ".join(parts), markup=False, highlight=False, soft_wrap=True)

    def _show(self) -> None:
        assert self._live is not None
        self._shown = time.monotonic()
        self._live.update(_table(self._names, self._states, self._slots), refresh=True)


def _table(names: Names, states: Mapping[str, State], slots: int | None) -> RenderableType:
    head = [", ".join(_counts(states.values())) or "no runs"]
    if best := names.best(states):
        head.append(f"best {best}")
    head += names.time_left(states, slots)
    listed = [f for f, state in states.items() if state.name in STYLES and state.name != "finished"]
    listed.sort(key=lambda folder: states[folder].name != "running")
    listed += [
        f for f, state in states.items() if state.name in ("queued", "missing") and state.detail
    ]
    if not listed:
        return Text("; ".join(head))
    table = Table("run", "state", "", box=None, pad_edge=False)
    for folder in listed[:ROWS]:
        state = states[folder]
        shown = Text(SHOWN.get(state.name, state.name), STYLES.get(state.name, ""))
        table.add_row(
            Text(printable(names.label(folder))), shown, Text(printable(_outcome(names, state)))
        )
    more = [Text(f"and {len(listed) - ROWS} more")] if len(listed) > ROWS else []
    return Group(Text("; ".join(head)), table, *more)


def _counts(states: Iterable[State]) -> Iterator[str]:
    every = [state.name for state in states]
    for name in NAMES:
        if count := every.count(name):
            yield f"{count:,} {SHOWN.get(name, name)}"


def _outcome(names: Names, state: State) -> str:
    if state.name == "finished":
        value = names.value(state)
        took = duration(state.result.get("wall_seconds", 0.0))
        return f"{value[0]} {value[1]:.4g} in {took}" if value else f"in {took}"
    parts = [f"step {state.step}/{state.steps}"] if state.step is not None else []
    if state.name == "running" and state.rate:
        parts.append(f"{state.rate:.3g} steps/s")
    return ", ".join([*parts, *filter(None, [state.detail])])
