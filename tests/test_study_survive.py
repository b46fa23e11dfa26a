"""Whatever happens to runs or to the launcher, nothing is lost and nothing is done twice."""

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import make_launch
import pytest
from make_launch import LONG, launched, line, runs, settings

import ablate
from ablate.study import local
from ablate.study.forks import Event
from ablate.study.slots import Run
from ablate.study.state import State, state

CALM, RAISES, KILLED, HANGS, NAN, ALSO_CALM = range(6)
PATIENCE = 900.0  # seconds; importing torch can take minutes on a machine in use
ACCIDENTS = f"raise 0 5 {RAISES};die 0 5 {KILLED};hang 0 5 {HANGS};nan 0 5 {NAN}"


@pytest.fixture(scope="module")
def seconds(tmp_path_factory: pytest.TempPathFactory) -> float:
    """What a tiny run takes on this machine now."""
    folder = tmp_path_factory.mktemp("pace")
    began = time.monotonic()
    ablate.run(ablate.compose(*line(folder, 0)), folder / "run")
    return time.monotonic() - began


@pytest.fixture
def command() -> Iterator[Callable[..., "subprocess.Popen[str]"]]:
    """Starts launchers; what a test leaves of them is stopped."""
    started: list[subprocess.Popen[str]] = []

    def start(*args: object, **more: str) -> "subprocess.Popen[str]":
        started.append(make_launch.command(*args, **more))  # type: ignore[arg-type]
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def until(happened: Callable[[], bool], seconds: float = PATIENCE) -> None:
    """Waits for it."""
    end = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < end
        time.sleep(0.05)


def tries(folder: Path) -> int:
    """How often a process began in a run's folder."""
    return sum(text.startswith("python -m ablate ") for text in (folder / "stdout.log").open())


def says(found: State, *texts: str) -> bool:
    return all(text in found.detail for text in texts)


def test_six_runs_of_which_four_go_wrong(
    tmp_path: Path, seconds: float, capfd: pytest.CaptureFixture[str]
) -> None:
    # The one that hangs begins first: the others have the other slot.
    wanted = runs(tmp_path, [HANGS, CALM, RAISES, KILLED, NAN, ALSO_CALM], "checkpoint_every=2")
    timeout = 5 + 4 * seconds
    found = dict(
        zip(
            (HANGS, CALM, RAISES, KILLED, NAN, ALSO_CALM),
            launched(wanted, ACCIDENTS, timeout=timeout, grace=1),
            strict=True,
        )
    )
    assert found[CALM].name == found[ALSO_CALM].name == "finished"
    assert {found[n].name for n in (RAISES, KILLED, HANGS, NAN)} == {"failed"}
    assert says(found[RAISES], "what a part of one's own may raise")
    assert says(found[KILLED], "killed by SIGKILL (perhaps out of memory)", "last lines: step 4/12")
    assert says(found[HANGS], f"hydra.launcher.timeout={timeout:g}", "last lines: step 4/12")
    assert says(found[NAN], "nan at step 5")
    assert "[6/6]" in capfd.readouterr().out
    before = {run.folder: (run.folder / "result.json").read_text() for run in wanted}

    again = launched(runs(tmp_path, range(6), "checkpoint_every=2"))
    assert [one.name for one in again] == ["finished"] * 6
    calm = [run.folder for run in wanted if tries(run.folder) == 1]
    assert len(calm) == 2
    assert all((folder / "result.json").read_text() == before[folder] for folder in calm)
    assert not list(tmp_path.rglob("queued.json"))
    for run in wanted:
        if run.folder not in calm:
            assert "going on from" in (run.folder / "stdout.log").read_text()


def test_a_failed_run_is_retried_from_its_checkpoint_and_a_refused_one_is_not(
    tmp_path: Path,
) -> None:
    (dies,) = runs(tmp_path, [0], "checkpoint_every=1")
    (lost,) = runs(tmp_path, [1])
    (refused,) = runs(tmp_path, [0], "data.path=nowhere.txt")
    accidents = "die-once 0 5 0;die 0 5 1"
    found = launched([dies, lost, refused], accidents, retries=1, slots=3)
    assert [one.name for one in found] == ["finished", "failed", "refused"]
    assert [tries(run.folder) for run in (dies, lost, refused)] == [2, 2, 1]
    assert "going on from" in (dies.folder / "stdout.log").read_text()
    assert says(found[2], "nowhere.txt")


def begun(folder: Path) -> bool:
    return (folder / "checkpoints" / "last.ckpt").exists()


Command = Callable[..., "subprocess.Popen[str]"]


def test_the_launcher_is_killed_and_started_again(command: Command, tmp_path: Path) -> None:
    wanted = runs(tmp_path, [0, 1, 2], *LONG)
    folders = [run.folder for run in wanted]
    first = command(tmp_path, "0,1,2", *LONG, "hydra.launcher.slots=2")
    until(lambda: begun(folders[0]) and begun(folders[1]))
    first.kill()
    first.wait()
    # Its runs write checkpoints, and end; nothing is stuck.
    until(lambda: [state(folder).name for folder in folders] == ["missing"] * 3)
    steps = [goes_on(folder) for folder in folders[:2]]
    assert all(step > 0 for step in steps)

    second = command(tmp_path, "0,1,2", *LONG, "hydra.launcher.slots=2")
    until(lambda: (state(folders[0]).step or 0) > steps[0])
    second.send_signal(signal.SIGTERM)
    said, _ = second.communicate(timeout=PATIENCE)
    assert second.returncode == 130, said
    assert "ablate: stopped by SIGTERM; the same command goes on" in said
    assert "Traceback" not in said
    assert {state(folder).name for folder in folders} == {"missing"}
    assert goes_on(folders[0]) > steps[0]
    assert not list(tmp_path.rglob("queued.json"))


def goes_on(folder: Path) -> int:
    """The step after which a run was stopped."""
    error = json.loads((folder / "result.json").read_text())["error"]
    assert error.startswith("stopped by SIGTERM after step")
    return int(error.split("step ")[1].split(";")[0])


def test_two_launchers_at_once_do_no_run_twice(command: Command, tmp_path: Path) -> None:
    wanted = runs(tmp_path, range(4))
    both = [command(tmp_path, seeds) for seeds in ("0,1,2,3", "3,2,1,0")]
    said = [one.communicate(timeout=PATIENCE)[0] for one in both]
    assert [one.returncode for one in both] == [0, 0], said
    assert [tries(run.folder) for run in wanted] == [1] * 4
    for text in said:
        assert text.count("finished: ") == 4  # also those that the other trained


def process_of(folder: Path) -> int:
    """The pid of the run, as its folder tells."""
    until(lambda: (folder / "progress.json").exists())
    return int(json.loads((folder / "progress.json").read_text())["pid"])


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_when_the_parent_of_all_runs_is_killed_they_are_tried_again(tmp_path: Path) -> None:
    wanted = runs(tmp_path, [0, 1], "checkpoint_every=1")

    def strike() -> None:
        for run in wanted:  # once both hang, which they do once
            until((run.folder / "met").exists)
        os.kill(parent_of(process_of(wanted[0].folder)), signal.SIGKILL)

    striking = threading.Thread(target=strike)
    striking.start()
    found = launched(wanted, "hang-once 0 5 0;hang-once 0 5 1", retries=1)
    striking.join()
    assert [one.name for one in found] == ["finished"] * 2
    assert tries(wanted[0].folder) == 2


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

    monkeypatch.setattr("ablate.study.ending.write_json", full)
    monkeypatch.setattr(local, "Forks", lambda *_, **__: Ending())
    wanted = [Run(tmp_path / "s" / name, ["seed=0"]) for name in ("a", "b")]
    with pytest.raises(OSError, match="No space left"):
        local.launch(wanted, settings(slots=1), modules=[], environment={})
    assert [state(run.folder).name for run in wanted] == ["missing"] * 2


@pytest.mark.slow
def test_a_run_whose_launcher_is_lost_is_taken_over_by_one_that_waits(
    command: Command, tmp_path: Path
) -> None:
    """Killed with all its processes, as when its machine is lost."""
    (wanted,) = runs(tmp_path, [0], "checkpoint_every=1")
    lost = command(tmp_path, "0", "checkpoint_every=1", accident="hang 0 5")
    pid = process_of(wanted.folder)
    waits = command(tmp_path, "0", "checkpoint_every=1")
    began = time.time()
    until(lambda: (tmp_path / "outputs/runs/multirun.yaml").stat().st_mtime > began)
    time.sleep(10)  # it has found the run taken, or finds it lost: either way it trains it
    for doomed in (lost.pid, parent_of(pid), pid):
        os.kill(doomed, signal.SIGKILL)
    said, _ = waits.communicate(timeout=PATIENCE)
    assert waits.returncode == 0, said
    assert tries(wanted.folder) == 2
    assert "going on from" in (wanted.folder / "stdout.log").read_text()
