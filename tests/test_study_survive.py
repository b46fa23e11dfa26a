"""Whatever happens to runs or to their study, nothing is lost and nothing is done twice."""

import json
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from html import unescape
from pathlib import Path

import make_launch
import pytest
from make_launch import environment, launched, line, runs, settings, study

import ablate
from ablate.errors import Interrupted
from ablate.study import sweeper
from ablate.study.launch import local
from ablate.study.launch.forks import Event
from ablate.study.launch.run import Run
from ablate.study.launch.state import state

pytest_plugins = ["command_line"]
real_report = sweeper.report

Started = Callable[..., "subprocess.Popen[str]"]
Command = Callable[..., tuple[int, str, str]]

HANGS, CALM, RAISES, KILLED, NAN, ALSO_CALM = range(6)  # seeds; what hangs has one slot to itself
ACCIDENTS = f"raise 0 5 {RAISES};die 0 5 {KILLED};hang 0 5 {HANGS};nan 0 5 {NAN}"
PATIENCE = 900.0  # seconds; importing torch can take minutes on a machine in use


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, float]:
    """The run of seed 1 that nothing happens to, and the seconds that it took."""
    folder = tmp_path_factory.mktemp("straight")
    began = time.monotonic()
    ablate.run(ablate.compose(*line(folder, 1)), folder / "run")
    return folder / "run", time.monotonic() - began


@pytest.fixture
def command() -> Iterator[Started]:
    """Starts studies; what a test leaves of them is stopped."""
    started: list[subprocess.Popen[str]] = []

    def start(*args: object, **more: str) -> "subprocess.Popen[str]":
        started.append(make_launch.command(*args, **more))  # type: ignore[arg-type]
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def here(ablate_command: Command, monkeypatch: pytest.MonkeyPatch) -> Command:
    """The command in this process, which has imported what it needs; its runs have their own."""
    monkeypatch.setattr(sweeper, "report", real_report)
    monkeypatch.setenv("PYTHONPATH", environment()["PYTHONPATH"])
    return ablate_command


def ended(process: "subprocess.Popen[str]") -> tuple[int, str]:
    said, _ = process.communicate(timeout=PATIENCE)
    return process.returncode, said


def until(happened: Callable[[], bool], seconds: float = PATIENCE) -> None:
    """Waits for it."""
    end = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < end
        time.sleep(0.05)


def folders(place: Path) -> dict[int, Path]:
    """Seed -> run, once the plan is written."""
    until((place / "plan.json").exists)
    cells = json.loads((place / "plan.json").read_text())["cells"]
    return {cell["seed"]: place / cell["folder"] for cell in cells}


def tries(folder: Path) -> int:
    """How often a process began in a run's folder."""
    return sum(text.startswith("python -m ablate ") for text in (folder / "stdout.log").open())


def goes_on(folder: Path) -> bool:
    """Whether a try began from a checkpoint."""
    return "resuming from" in (folder / "stdout.log").read_text()


def measured(folder: Path) -> tuple[dict[str, float], str]:
    """What a run came to, and its curves."""
    metrics = json.loads((folder / "result.json").read_text())["metrics"]
    return metrics, (folder / "metrics.csv").read_text()


def reports(said: str, place: Path) -> bool:
    """Whether a study printed its table in the end, and where its report lies."""
    _, _, last = said.rpartition("] finished: ")
    return "mine: val/loss, lower is better" in last and f"  {place / 'report.html'}\n" in last


def written(place: Path) -> tuple[str, str]:
    """The words of report.md and of report.html."""
    page = re.sub("</?span>", "", (place / "report.html").read_text())
    return (place / "report.md").read_text(), unescape(page)


@pytest.mark.slow
def test_six_runs_of_which_four_go_wrong(
    command: Started, here: Command, straight: tuple[Path, float], tmp_path: Path
) -> None:
    timeout = f"hydra.launcher.timeout={5 + 4 * straight[1]:g}"
    own = (timeout, "hydra.launcher.grace=1", "hydra.launcher.slots=2", "checkpoint_every=2")
    typed = (tmp_path, "0,1,2,3,4,5", *own)
    place = tmp_path / "outputs" / "mine"
    code, said = ended(command(*typed, accident=ACCIDENTS))
    assert code == 1, said
    assert "ablate: 4 of 6 runs are not finished: " in said.splitlines()[-1]
    assert "[6/6] " in said
    assert reports(said, place)
    text, page = written(place)
    for seed, reason in {
        RAISES: "what a part of one's own may raise",
        KILLED: "killed by SIGKILL (perhaps out of memory); last lines: step 4/12",
        HANGS: f"{timeout}: not done in time; last lines: step 4/12",
        NAN: "nan at step 5",
    }.items():
        row = rf"^\| baseline \| {seed} \| failed \| .*{re.escape(reason)}"
        assert re.search(row, text, re.MULTILINE), text
        assert reason in page
    assert "over 2 seeds." in text

    calm = [folders(place)[seed] / "result.json" for seed in (CALM, ALSO_CALM)]
    before = [path.read_text() for path in (*calm, place / "plan.json")]
    first = command(*typed)  # the same command, and once more while it works
    until(lambda: (place / "plan.json").read_text() != before[-1])
    second = here(*study(*typed))
    for code, said, *errors in (ended(first), second):
        assert code == 0, (said, errors)
        assert reports(said, place)
    assert [path.read_text() for path in calm] == before[:-1]
    assert [tries(folder) for folder in folders(place).values()] == [2, 1, 2, 2, 2, 1]
    assert [goes_on(folder) for folder in folders(place).values()].count(True) == 4
    text, page = written(place)
    assert "over 6 seeds." in text
    assert "went wrong" not in text
    assert "What failed" not in page
    assert not list(tmp_path.rglob("queued.json"))


@pytest.mark.slow
def test_the_controller_is_killed_and_started_again(
    command: Started, here: Command, straight: tuple[Path, float], tmp_path: Path
) -> None:
    """It was the middle: a run was finished, one trained, one waited."""
    own = ("checkpoint_every=3", "hydra.launcher.slots=1")
    place = tmp_path / "outputs" / "mine"
    first = command(tmp_path, "0,1,2", *own, accident="pause-once 0 5 1")
    found = list(folders(place).values())
    until((found[1] / "met").exists)
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
    assert measured(found[1]) == measured(straight[0])

    assert here(*study(tmp_path, "0,1,2,3", *own))[0] == 0  # the plan has grown
    assert [tries(folder) for folder in folders(place).values()] == [1, 2, 1, 1]
    assert "over 4 seeds." in written(place)[0]
    assert not list(tmp_path.rglob("queued.json"))


def process_of(folder: Path) -> int:
    """The pid of the run, as its folder tells."""
    until((folder / "progress.json").exists)
    return int(json.loads((folder / "progress.json").read_text())["pid"])


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.mark.slow
def test_what_fails_is_tried_again_and_what_is_refused_or_stopped_is_not(tmp_path: Path) -> None:
    """One run dies once, one always; one loses a try when the parent of all runs is killed, and is
    stopped in the next."""
    dies, stopped = runs(tmp_path, [0, 2], "checkpoint_every=1")
    (lost,) = runs(tmp_path, [1])
    (refused,) = runs(tmp_path, [0], "data.path=nowhere.txt")
    over = {dies.folder: "finished", lost.folder: "failed", refused.folder: "refused"}

    def strike() -> None:
        until(lambda: {folder: state(folder).name for folder in over} == over)
        until((stopped.folder / "met").exists)
        os.kill(parent_of(process_of(stopped.folder)), signal.SIGKILL)
        until(lambda: "step 8/12" in (stopped.folder / "stdout.log").read_text())
        os.kill(os.getpid(), signal.SIGTERM)

    striking = threading.Thread(target=strike, daemon=True)
    striking.start()
    accidents = "die-once 0 5 0;die 0 5 1;hang-once 0 5 2;pause 0 8 2"
    with pytest.raises(Interrupted, match="stopped by SIGTERM; the same command resumes"):
        launched([dies, lost, refused, stopped], accidents, retries=1, slots=3)
    assert [tries(run.folder) for run in (dies, lost, refused, stopped)] == [2, 2, 1, 2]
    assert goes_on(dies.folder)
    assert goes_on(stopped.folder)
    assert "nowhere.txt" in state(refused.folder).detail
    assert state(stopped.folder).name == "missing"
    assert "stopped by SIGTERM after step 9; the same command" in state(stopped.folder).detail


def test_a_full_disk_ends_the_launcher_and_leaves_no_run_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What its processes do is made up: how they ended is what cannot be written down."""

    class Ending:
        def start(self, run: int, *_: object) -> None:
            self.happened = [Event(run), Event(run, code=1)]

        def events(self, seconds: float) -> list[Event]:
            return self.happened

        def close(self) -> None:
            pass

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("ablate.study.launch.ending.write_json", full)
    monkeypatch.setattr(local, "Forks", lambda *_, **__: Ending())
    wanted = [Run(tmp_path / "s" / name, ["seed=0"]) for name in ("a", "b")]
    with pytest.raises(OSError, match="No space left"):
        local.launch(wanted, settings(slots=1), modules=[], environment={})
    assert [state(run.folder).name for run in wanted] == ["missing"] * 2


@pytest.mark.slow
def test_a_run_whose_controller_is_lost_is_taken_over_by_one_that_waits(
    command: Started, tmp_path: Path
) -> None:
    """Killed with all its processes, as when its machine is lost."""
    typed = (tmp_path, "0,1", "checkpoint_every=1")
    lost = command(*typed, accident="hang 0 5 0")
    found = folders(tmp_path / "outputs" / "mine")
    pid = process_of(found[0])
    waits = command(*typed)
    until(lambda: state(found[1]).name == "finished")  # it trains what the other has not
    for doomed in (lost.pid, parent_of(pid), pid):
        os.kill(doomed, signal.SIGKILL)
    code, said = ended(waits)
    assert code == 0, said
    assert [tries(folder) for folder in found.values()] == [2, 1]
    assert goes_on(found[0])
