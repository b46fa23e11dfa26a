"""The table that follows a launcher: on a terminal, where nobody watches, and from another one."""

import json
import sys
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

import pytest
from filelock import FileLock
from make_study import arm, make_study
from rich.console import Console

from ablate import report
from ablate.cli.command import command
from ablate.study.launch import live
from ablate.study.launch.live import View, status_table
from ablate.study.launch.state import State

DOT = "model.attention=dot"
BEST = "best val/loss 1.3 (model.attention=dot, seed 0)"
FAILED = f"{DOT}, seed 1 failed loss is nan at step 40"
RUNNING = f"{DOT}, seed 2 running step 100/400, 10 steps/s, pid 17 on desk"
BETTER = State("finished", result={"metrics": {"val/loss": 1.2}, "wall_seconds": 40.0})


@pytest.fixture
def study(tmp_path: Path) -> Iterator[Path]:
    """Three runs are finished, in 20 s each, one has failed, one is not begun, and one trains: it
    has 30 s to go."""
    arms = {
        "baseline": arm([1.5, 1.4, None]),
        DOT: arm([1.3, "failed: loss is nan at step 40", "running"]),
    }
    made = make_study(tmp_path / "scores", arms)
    now = {"step": 100, "steps": 400, "rate": 10.0, "pid": 17, "host": "desk"}
    (training(made) / "progress.json").write_text(json.dumps(now))
    with FileLock(training(made) / ".lock"):
        yield made


def folder(study: Path, arm: str, seed: int) -> Path:
    cells = json.loads((study / "plan.json").read_text())["cells"]
    return next(study / c["folder"] for c in cells if (c["arm"], c["seed"]) == (arm, seed))


def training(study: Path) -> Path:
    return folder(study, DOT, 2)


def to_do(study: Path) -> Path:
    return folder(study, "baseline", 2)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Console:
    """What a launcher takes for its terminal; it keeps what was shown."""
    made = Console(
        force_terminal=True, file=StringIO(), record=True, width=160, height=40,
        _environ={"TERM": "xterm"},
    )  # fmt: skip
    monkeypatch.setattr(live, "Console", lambda: made)
    monkeypatch.setattr(live, "SECONDS", 0.0)
    return made


def lines(text: str) -> list[str]:
    """Without the room between columns."""
    return [" ".join(line.split()) for line in text.splitlines() if line.strip()]


def shown(terminal: Console) -> list[str]:
    """Since the last look."""
    return lines(terminal.export_text())


def test_a_terminal_shows_how_the_runs_stand(study: Path, terminal: Console) -> None:
    with View.of([to_do(study), training(study)], slots=1) as view:
        view.update([])
        assert shown(terminal) == [
            f"3 finished, 2 queued, 1 failed; {BEST}; about 40 s left",
            "run state",
            FAILED,
        ]
        view.update([training(study)])
        assert shown(terminal) == [
            f"3 finished, 1 running, 1 queued, 1 failed; {BEST}; about 50 s left",
            "run state",
            RUNNING,
            FAILED,
        ]
        view.ended(training(study), BETTER)
        assert shown(terminal) == []  # a line a run is for where nobody watches
        view.update([])
        better = f"best val/loss 1.2 ({DOT}, seed 2)"
        assert shown(terminal)[0] == f"4 finished, 1 queued, 1 failed; {better}; about 20 s left"
        view.ended(to_do(study), State("failed", "out of memory"))
    head, _, *rows = shown(terminal)
    assert head == f"4 finished, 2 failed; {better}"
    assert rows[0] == "baseline, seed 2 failed out of memory"
    assert rows[-1] == FAILED


def test_slots_that_nobody_knows_are_as_many_as_run(study: Path, terminal: Console) -> None:
    with View.of([to_do(study), training(study)], slots=None) as view:
        view.update([])
        assert shown(terminal)[0] == f"3 finished, 2 queued, 1 failed; {BEST}"
        view.update([training(study)])
        assert shown(terminal)[0].endswith("; about 50 s left")


def test_the_folders_are_looked_at_once_a_second(
    study: Path, terminal: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "SECONDS", 3600.0)
    with View.of([training(study)], slots=1) as view:
        view.update([training(study)])
        assert RUNNING in shown(terminal)
        view.update([training(study)])
        assert shown(terminal) == []


def test_where_nobody_watches_a_run_that_ends_is_a_line(study: Path) -> None:
    console = Console(file=StringIO(), record=True, width=40)
    view = View([to_do(study), training(study)], slots=1, console=console, live=None)
    view.update([training(study)])
    assert shown(console) == []
    view.ended(training(study), BETTER)
    view.again(to_do(study), State("failed", "killed by SIGKILL", step=3, steps=9))
    assert shown(console) == [
        f"[5/6] finished: {DOT}, seed 2; val/loss 1.2 in 40 s; about 20 s left",
        "[5/6] failed, tried again: baseline, seed 2; step 3/9, killed by SIGKILL; about 20 s left",
    ]


def test_the_status_command_tells_the_same(
    study: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setattr(sys, "argv", ["ablate.report", str(study), "--status"])
    with pytest.raises(SystemExit) as end:
        command(report.main)
    assert end.value.code == 0
    assert lines(capsys.readouterr().out) == [
        f"3 finished, 1 running, 1 to do, 1 failed; {BEST}; about 50 s left",
        "run state",
        RUNNING,
        FAILED,
    ]
    assert not (study / "report.html").exists()


def test_of_many_failures_the_first_are_shown(tmp_path: Path) -> None:
    study = make_study(tmp_path / "scores", {"baseline": arm(["failed: x"] * 25)})
    console = Console(file=StringIO(), record=True, width=80)
    console.print(status_table(study))
    head, _, *rows, more = shown(console)
    assert (head, more) == ("25 failed", "and 5 more")
    assert rows == [f"baseline, seed {seed} failed x" for seed in range(20)]
