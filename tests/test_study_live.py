"""The table that follows a launcher: on a terminal, where nobody watches, and from another one."""

import json
from io import StringIO

import pytest
from filelock import FileLock
from make_study import arm, make_study
from rich.console import Console

from ablate import report
from ablate.cli.command import command
from ablate.study.launch import live
from ablate.study.launch.estimate import Durations
from ablate.study.launch.live import View
from ablate.study.launch.state import State

DOT = "model.attention=dot"
BEST = "best val/loss 1.3 (model.attention=dot, seed 0)"
FAILED = f"{DOT}, seed 1 failed loss is nan at step 40"
RUNNING = f"{DOT}, seed 2 running step 100/400, 10 steps/s, pid 17 on desk"
BETTER = State("finished", result={"metrics": {"val/loss": 1.2}, "wall_seconds": 40.0})


@pytest.fixture
def study(tmp_path):
    """Three runs finished in 20 s each, one failed, one is not begun, one has 30 s to go."""
    dot = arm([1.3, "failed: loss is nan at step 40", "running"])
    made = make_study(tmp_path / "scores", {"baseline": arm([1.5, 1.4, None]), DOT: dot})
    now = {"step": 100, "steps": 400, "rate": 10.0, "pid": 17, "host": "desk"}
    (training(made) / "progress.json").write_text(json.dumps(now))
    with FileLock(training(made) / ".lock"):
        yield made


def folder(study, arm, seed):
    cells = json.loads((study / "plan.json").read_text())["cells"]
    return next(study / c["folder"] for c in cells if (c["arm"], c["seed"]) == (arm, seed))


def training(study):
    return folder(study, DOT, 2)


def to_do(study):
    return folder(study, "baseline", 2)


@pytest.fixture
def terminal(monkeypatch):
    """What a launcher takes for its terminal; it keeps what was shown."""
    size = {"width": 160, "height": 40, "_environ": {"TERM": "xterm"}}
    made = Console(force_terminal=True, file=StringIO(), record=True, **size)
    monkeypatch.setattr(live, "Console", lambda: made)
    monkeypatch.setattr(live, "SECONDS", 0.0)
    return made


def lines(text):
    return [" ".join(line.split()) for line in text.splitlines() if line.strip()]


def shown(terminal):
    """Since the last look, without the room between columns."""
    return lines(terminal.export_text())


def test_a_terminal_shows_how_the_runs_stand(study, terminal):
    with View.of([to_do(study), training(study)], slots=1) as view:
        view.update([])
        head = f"3 finished, 2 queued, 1 failed; {BEST}; about 40 s left"
        assert shown(terminal) == [head, "run state", FAILED]
        view.update([training(study)])
        head = f"3 finished, 1 running, 1 queued, 1 failed; {BEST}; about 52 s left"
        assert shown(terminal) == [head, "run state", RUNNING, FAILED]
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


def test_runs_that_a_command_does_not_start_are_not_counted(study, capsys):
    with View.of([training(study)], slots=1) as view:
        view.ended(training(study), BETTER)
    assert capsys.readouterr().out == f"[5/5] finished: {DOT}, seed 2; val/loss 1.2 in 40 s\n"


def test_runs_of_blocks_have_their_names(tmp_path, capsys):
    of_blocks = {"n=1": "baseline", "n=2": DOT}  # whose runs have other ids
    runs = [
        folder(make_study(tmp_path / block, {name: arm([None])}), name, 0)
        for block, name in of_blocks.items()
    ]
    with View.of(runs, slots=1) as view:
        for run in runs:
            view.ended(run, State("failed", "out of memory"))
    assert capsys.readouterr().out.splitlines() == [
        "[1/2] failed: baseline, seed 0, n=1; out of memory",
        f"[2/2] failed: {DOT}, seed 0, n=2; out of memory",
    ]


def test_the_status_command_tells_the_same(study, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setattr("sys.argv", ["ablate.report", str(study), "--status"])
    with pytest.raises(SystemExit, match="0"):
        command(report.main)
    head = f"3 finished, 1 running, 1 to do, 1 failed; {BEST}; about 52 s left"
    assert lines(capsys.readouterr().out) == [head, "run state", RUNNING, FAILED]
    assert not (study / "report.html").exists()


def test_the_time_left():
    quick, long = (State("finished", result={"wall_seconds": s}) for s in (60.0, 3600.0))
    costly = State("finished", result={"wall_seconds": 60.0, "train_seconds": 50.0})
    branch = State("finished", result=quick.result | {"steps": 40, "trunk": {"step": 30}})
    half, to_do = State("running", step=50, steps=100, rate=2.0), State("queued")
    for runs, slots, told in (
        ({"a-0": to_do}, 1, None),
        ({"a-0": quick}, 1, None),
        ({"a-0": quick, "a-1": half}, 1, "25 s"),
        ({"a-0": costly, "a-1": half}, 1, "35 s"),  # with what is no training
        ({"a-0": half, "a-1": to_do}, 1, "75 s"),  # a whole run takes 50 s, as it looks
        ({"a-0": quick, "b=c-0": long, "b=c-1": to_do, "a-1": to_do}, 2, "1 h 00 min"),
        ({"a-1": quick, "a-2": to_do, "a-b-3": to_do}, 1, "2 min 00 s"),  # a-b: as the rest
        ({"a-0": branch, "a-1": to_do}, 1, "15 s"),  # the trunk is not trained again
    ):
        to_do = [run for run, state in runs.items() if not state.ended]
        assert Durations(runs).left(to_do, slots) == told


def test_seconds_of_planned_runs_are_those_of_finished_ones():
    def ran(wall, train, flops):
        times = {"wall_seconds": wall, "train_seconds": train}
        return State("finished", result=times | {"flops_per_step": flops, "steps": 1})

    def seconds(arm, flops, **finished):
        return Durations({f"{name[0]}-{name[1:]}": r for name, r in finished.items()}, {},
                         {arm: flops}).seconds(arm)  # fmt: skip

    own = {f"a{wall}": ran(wall, 1.0, 10) for wall in (30, 10, 11)}
    assert seconds("a", 999.0, **own, b0=ran(500.0, 1.0, 1)) == 11.0
    others = {"a0": ran(12.0, 10.0, 100), "b0": ran(43.0, 40.0, 400)}
    assert seconds("c", 200.0, **others) == pytest.approx(20.0 + 2.5)  # by FLOPs
    assert seconds("c", 200.0, a0=ran(9.0, 8.0, 0)) == 9.0  # without them
    # Small trainings take longer for a FLOP than those of a size near the planned run's; one of
    # them is running.
    sizes = {f"{n}0": ran(10.0, 10.0, 1) for n in "defg"}
    sizes |= {f"{n}0": ran(50.0, 50.0, 100) for n in "hi"}
    sizes |= {"j0": State("running", step=1, steps=100, rate=2.0)}
    states = {f"{name[0]}-{name[1:]}": run for name, run in sizes.items()}
    assert Durations(states, {}, {"c": 200.0, "j": 100.0}).seconds("c") == 100.0
    for times, told in (
        ([4.0, 1.0, 1.0, 1.0], "4 s"),  # the short ones share a slot
        ([1.0, 1.0, 4.0], "5 s"),  # the long one waits
        ([], None),
    ):
        states = {f"{n}-0": State("finished", result={"wall_seconds": t})
                  for n, t in enumerate(times)}  # fmt: skip
        assert Durations(states).left(states, 2) == told
