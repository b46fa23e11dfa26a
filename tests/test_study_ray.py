"""hydra/launcher=ray on a real Ray, private to these tests."""

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import make_ray
import pytest
from make_launch import (
    Command,
    commands,
    ended,
    folders,
    metrics,
    parent_of,
    printed,
    process_of,
    runs,
    study_line,
    tries,
    until,
)
from make_ray import launched

import ablate
from ablate.errors import UserError
from ablate.study.launch import ray as launcher
from ablate.study.launch.ray import Settings, train
from ablate.study.launch.state import state

pytest_plugins = ["command_line"]


@pytest.fixture(scope="module")
def cluster() -> Iterator[dict[str, str]]:
    if reason := make_ray.missing():
        pytest.skip(reason)
    # Not below pytest's own folder: the names of sockets are short.
    with TemporaryDirectory(prefix="ray") as place, make_ray.cluster(Path(place)) as around:
        yield around


@pytest.fixture
def member(cluster: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """This process belongs to it."""
    for name, value in cluster.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def command(member: None) -> Iterator[Command]:
    with commands() as start:
        yield start


def on_ray(folder: Path, *more: str, accident: str = "") -> list[str]:
    variables = make_ray.around(accident)["env_vars"]
    written = ", ".join(f"{name}: '{value}'" for name, value in variables.items())
    own = f"+hydra.launcher.ray.init.runtime_env={{env_vars: {{{written}}}}}"
    return study_line(folder, "ray", own, "hydra/launcher=ray", *more)


@pytest.mark.slow
def test_a_study_measures_what_it_does_locally_and_only_what_failed_runs_again(command, tmp_path):
    code, said = ended(command(*on_ray(tmp_path, accident="die 0 5 1")))
    assert code == 1, said
    assert "2 of 4 runs are not finished" in said
    assert "killed by SIGKILL (perhaps out of memory); last lines: " in said
    assert "step 4/" in said
    line = on_ray(tmp_path)
    both = [command(*line), command(*line)]  # two at once do no run twice
    for each in both:
        code, said = ended(each)
        assert code == 0, said
    found = folders(tmp_path / "ray" / "mine")
    assert [tries(folder) for folder in found.values()] == [1, 1, 2, 2]
    code, said = ended(command(*study_line(tmp_path, "local")))
    assert code == 0, said
    for name, folder in folders(tmp_path / "local" / "mine").items():
        assert folder.name == found[name].name
        assert metrics(folder) == metrics(found[name])


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_controller_is_stopped_and_started_again(command, tmp_path, number):
    """Its runs write checkpoints and end, although the cluster lives on."""
    first = command(*on_ray(tmp_path, "study.seeds=1", accident="pause-once 0 5 0"))
    found = list(folders(tmp_path / "ray" / "mine").values())
    for folder in found:
        until((folder / "met").exists)
    first.send_signal(number)
    code, said = ended(first)
    if number == signal.SIGTERM:
        assert code == 130, said
        assert "ablate: stopped by SIGTERM; the same command resumes" in said
    until(lambda: [state(folder).name for folder in found] == ["missing"] * 2)
    for folder in found:
        assert "stopped by SIGTERM after step 6" in state(folder).detail
    code, said = ended(command(*on_ray(tmp_path, "study.seeds=1")))
    assert code == 0, said
    assert [tries(folder) for folder in found] == [2, 2]


@pytest.mark.slow
def test_a_run_whose_worker_is_lost_is_tried_again_from_its_checkpoint(member, tmp_path):
    (run,) = wanted = runs(tmp_path, [0], "checkpoint_every=1")

    def strike() -> None:
        until((run.folder / "met").exists)
        os.kill(parent_of(parent_of(process_of(run.folder))), signal.SIGKILL)

    striking = threading.Thread(target=strike)
    striking.start()
    (found,) = launched(wanted, "pause-once 0 5 0")
    striking.join()
    assert found.name == "finished", found
    assert tries(run.folder) == 2
    assert "resuming from" in printed(run.folder)
    straight = ablate.run(ablate.compose(*run.arguments[:-2]), tmp_path / "straight")
    assert metrics(run.folder) == straight["metrics"]


# Without a Ray


def test_what_cannot_be_is_said(tmp_path):
    with pytest.raises(FileNotFoundError, match="output_dir must lie where all nodes look"):
        train([], str(tmp_path / "no"), modules=[], grace=1, cwd=".", typed=None)
    wrong: Any
    for wrong in (0, None, "long", True):
        with pytest.raises(UserError, match=f"hydra.launcher.grace={wrong}: must be"):
            Settings(init={}, remote={}, grace=wrong)


def test_a_missing_package_is_one_line(ablate_command, tmp_path, monkeypatch):
    monkeypatch.setattr(launcher, "find_spec", lambda name: None)
    code, _, err = ablate_command(*study_line(tmp_path, "outputs"), "hydra/launcher=ray")
    assert (code, err) == (2, "ablate: hydra/launcher=ray needs the package ray: pip install ray\n")
    assert not (tmp_path / "outputs").exists()
