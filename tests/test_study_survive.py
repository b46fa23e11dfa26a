"""Whatever happens to runs or to their study, nothing is lost and nothing is done twice."""

import json
import os
import re
import signal
import threading
import time

import pytest
from make_launch import (
    ended,
    environment,
    goes_on,
    launched,
    line,
    met,
    metrics,
    parent_of,
    paths,
    printed,
    process_of,
    runs,
    study,
    tries,
    until,
)
from tiny import overrides

import ablate
from ablate.errors import Interrupted
from ablate.study import sweeper
from ablate.study.launch.state import state

pytest_plugins = ["command_line", "make_launch"]
real_report = sweeper.report

HANGS, CALM, RAISES, KILLED, NAN, ALSO_CALM = range(6)  # seeds; what hangs has one slot to itself
ACCIDENTS = f"raise 0 5 {RAISES};die 0 5 {KILLED};hang 0 5 {HANGS};nan 0 5 {NAN}"


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """The run of seed 1 that nothing happens to, and the seconds that it took."""
    folder = tmp_path_factory.mktemp("straight")
    began = time.monotonic()
    ablate.run(ablate.compose(*line(folder, 1)), folder / "run")
    return folder / "run", time.monotonic() - began


@pytest.fixture
def here(ablate_command, monkeypatch):
    """The command in this process, which has imported what it needs; its runs have their own."""
    monkeypatch.setattr(sweeper, "report", real_report)
    monkeypatch.setenv("PYTHONPATH", environment()["PYTHONPATH"])
    return ablate_command


def reports(said, place):
    """Whether a study printed its table in the end, and where its report lies."""
    _, _, last = said.rpartition("] finished: ")
    return "mine: val/loss, lower is better" in last and f"  {place / 'report.html'}\n" in last


@pytest.mark.slow
def test_six_runs_of_which_four_go_wrong(command, here, straight, tmp_path):
    timeout = f"hydra.launcher.timeout={5 + 4 * straight[1]:g}"
    own = (
        timeout,
        "hydra.launcher.grace_period=1",
        "hydra.launcher.max_parallel_runs=2",
        "checkpoint_every=2",
    )
    typed = study(tmp_path, "0,1,2,3,4,5", *own)
    place = tmp_path / "outputs" / "mine"
    code, said = ended(command(*typed, accident=ACCIDENTS))
    assert code == 1, said
    assert "ablate: 4 of 6 runs are not finished: " in said.splitlines()[-1]
    assert "[6/6] " in said
    assert reports(said, place)
    text = (place / "report.md").read_text()
    for seed, reason in {
        RAISES: "what a part of one's own may raise",
        KILLED: "killed by SIGKILL (perhaps out of memory); last lines: gpt: ",
        HANGS: f"{timeout}: not done in time; last lines: gpt: ",
        NAN: "nan at step 5",
    }.items():
        row = rf"^\| baseline \| {seed} \| failed \| .*{re.escape(reason)}"
        assert re.search(row, text, re.MULTILINE), text
    assert "over 2 seeds." in text

    found = paths(place)
    calm = [found[seed] / "result.json" for seed in (CALM, ALSO_CALM)]
    before = [path.read_text() for path in (*calm, place / "plan.json")]
    first = command(*typed)  # the same command, and once more while it works
    until(lambda: (place / "plan.json").read_text() != before[-1])
    second = here(*typed)
    for code, said, *errors in (ended(first), second):
        assert code == 0, (said, errors)
        assert reports(said, place)
    assert [path.read_text() for path in calm] == before[:-1]
    assert [tries(folder) for folder in found] == [2, 1, 2, 2, 2, 1]
    assert [goes_on(folder) for folder in found].count(True) == 4
    text = (place / "report.md").read_text()
    assert "over 6 seeds." in text
    assert "went wrong" not in text
    assert not list(tmp_path.rglob("queued.json"))


@pytest.mark.slow
def test_the_controller_is_killed_and_started_again(command, here, straight, tmp_path):
    """It was the middle: a run was finished, one trained, one waited."""
    own = ("checkpoint_every=3", "hydra.launcher.max_parallel_runs=1")
    place = tmp_path / "outputs" / "mine"
    first = command(*study(tmp_path, "0,1,2", *own), accident="pause-once 0 5 1")
    found = paths(place)
    until(met(found[1]))
    first.kill()
    # Its run writes a checkpoint, and ends; nothing is stuck.
    until(lambda: state(found[1]).name == "missing")
    assert "stopped by SIGTERM after step 6" in state(found[1]).detail
    assert [state(folder).name for folder in found] == ["finished", "missing", "missing"]

    code, said, errors = here(*study(tmp_path, "0,1,2", *own))
    assert code == 0, (said, errors)
    assert reports(said, place)
    assert [tries(folder) for folder in found] == [1, 2, 1]
    assert goes_on(found[1])
    assert metrics(found[1]) == metrics(straight[0])
    assert (found[1] / "metrics.csv").read_text() == (straight[0] / "metrics.csv").read_text()

    assert here(*study(tmp_path, "0,1,2,3", *own))[0] == 0  # the plan has grown
    assert [tries(folder) for folder in paths(place)] == [1, 2, 1, 1]
    assert "over 4 seeds." in (place / "report.md").read_text()
    assert not list(tmp_path.rglob("queued.json"))


@pytest.mark.slow
def test_what_fails_is_tried_again_and_what_is_refused_or_stopped_is_not(tmp_path):
    """One loses a try when the parent of all runs is killed, and is stopped in the next."""
    dies, stopped = runs(tmp_path, [0, 2], "checkpoint_every=1")
    (lost,) = runs(tmp_path, [1])
    (refused,) = runs(tmp_path, [0], "data.path=nowhere.txt")
    over = {dies.folder: "finished", lost.folder: "failed", refused.folder: "rejected"}

    def strike():
        until(lambda: {folder: state(folder).name for folder in over} == over)
        until(met(stopped.folder))
        os.kill(parent_of(process_of(stopped.folder)), signal.SIGKILL)
        until(lambda: "step 8/12" in printed(stopped.folder))
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=strike, daemon=True).start()
    accidents = "die-once 0 5 0;die 0 5 1;hang-once 0 5 2;pause 0 8 2"
    with pytest.raises(Interrupted, match="stopped by SIGTERM; the same command resumes"):
        launched([dies, lost, refused, stopped], accidents, retries=1, max_parallel_runs=3)
    assert [tries(run.folder) for run in (dies, lost, refused, stopped)] == [2, 2, 1, 2]
    assert goes_on(dies.folder)
    assert goes_on(stopped.folder)
    assert "nowhere.txt" in state(refused.folder).detail
    assert state(stopped.folder).name == "missing"
    assert "stopped by SIGTERM after step 9; the same command" in state(stopped.folder).detail


@pytest.mark.slow
def test_a_run_whose_controller_is_lost_is_taken_over_by_one_that_waits(command, tmp_path):
    """Killed with all its processes, as when its machine is lost."""
    typed = study(tmp_path, "0,1", "checkpoint_every=1")
    lost = command(*typed, accident="hang 0 5 0")
    found = paths(tmp_path / "outputs" / "mine")
    pid = process_of(found[0])
    waits = command(*typed)
    until(lambda: state(found[1]).name == "finished")  # it trains what the other has not
    for doomed in (lost.pid, parent_of(pid), pid):
        os.kill(doomed, signal.SIGKILL)
    code, said = ended(waits)
    assert code == 0, said
    assert [tries(folder) for folder in found] == [2, 1]
    assert goes_on(found[0])


@pytest.mark.slow
@pytest.mark.ci
def test_budgets_begin_at_states_of_the_longest(here, tmp_path):
    """Which are removed when the shorter runs are finished."""
    steps = "trainer.max_steps=10,40"
    own = [text for text in overrides(tmp_path) if not text.startswith("trainer.max_steps")]
    code, said, err = here("-m", *own, "study.name=mine", "schedule=wsd", steps)
    assert code == 0, said + err
    short, long = paths(tmp_path / "outputs" / "mine")
    began = json.loads((short / "result.json").read_text())["trunk"]
    assert (began["folder"], began["step"]) == (f"../{long.name}", 8)
    assert f"beginning after step 8 of {long}" in printed(short)
    assert not list(long.glob("checkpoints/branch-*"))
