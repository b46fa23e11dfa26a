"""hydra/launcher=ray on a real Ray, private to these tests."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import make_ray
import pytest
from accident import OVERRIDE
from make_launch import environment, runs
from make_ray import launched
from make_slurm import until
from make_sweep import tiny_for, write_sweep

import ablate
from ablate.errors import UserError
from ablate.study.launch import ray as launcher
from ablate.study.launch.ray import Settings, train
from ablate.study.launch.state import state

pytest_plugins = ["command_line"]
STUDY = "{factors: {pos_enc: [none]}, seeds: 2}"
PATIENCE = 900.0  # seconds; the machine may be in use


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


def study_line(folder: Path, output: str, *more: str, accident: str = "") -> list[str]:
    tiny = [text for text in tiny_for(STUDY, folder) if not text.startswith("output_dir=")]
    own = [f"output_dir={folder / output}", "checkpoint_every=1", OVERRIDE]
    if "hydra/launcher=ray" in more:
        variables = make_ray.around(accident)["env_vars"]
        written = ", ".join(f"{name}: '{value}'" for name, value in variables.items())
        own.append(f"+hydra.launcher.ray.init.runtime_env={{env_vars: {{{written}}}}}")
    return [*write_sweep(folder, STUDY), *tiny, *own, *more]


@pytest.fixture
def command(member: None) -> Iterator[Callable[..., "subprocess.Popen[str]"]]:
    """Starts studies; what a test leaves of them is stopped."""
    started: list[subprocess.Popen[str]] = []

    def start(*line: str) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            [sys.executable, "-m", "ablate", *line],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            env=environment(),
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def ended(process: "subprocess.Popen[str]") -> tuple[int, str]:
    said, _ = process.communicate(timeout=PATIENCE)
    return process.returncode, said


def folders(study: Path) -> dict[str, Path]:
    """Arm and seed -> folder, once the plan is written."""
    until((study / "plan.json").exists)
    cells = json.loads((study / "plan.json").read_text())["cells"]
    return {f"{cell['arm']} {cell['seed']}": study / cell["folder"] for cell in cells}


def tries(folder: Path) -> int:
    return len(re.findall("^python -m ablate ", (folder / "stdout.log").read_text(), re.MULTILINE))


def metrics(folder: Path) -> dict[str, float]:
    found: dict[str, float] = json.loads((folder / "result.json").read_text())["metrics"]
    return found


@pytest.mark.slow
def test_a_study_measures_what_it_does_locally_and_only_what_failed_runs_again(
    command: Callable[..., "subprocess.Popen[str]"], tmp_path: Path
) -> None:
    first = command(*study_line(tmp_path, "ray", "hydra/launcher=ray", accident="die 0 5 1"))
    code, said = ended(first)
    assert code == 1, said
    assert "2 of 4 runs are not finished" in said
    assert "killed by SIGKILL (perhaps out of memory); last lines: step 4" in said
    line = study_line(tmp_path, "ray", "hydra/launcher=ray")
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
def test_the_controller_is_stopped_and_started_again(
    command: Callable[..., "subprocess.Popen[str]"], tmp_path: Path, number: signal.Signals
) -> None:
    """Its runs write checkpoints and end, although the cluster lives on."""
    typed = ("hydra/launcher=ray", "study.seeds=1")
    line = study_line(tmp_path, "ray", *typed)
    first = command(*study_line(tmp_path, "ray", *typed, accident="pause-once 0 5 0"))
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
    code, said = ended(command(*line))
    assert code == 0, said
    assert [tries(folder) for folder in found] == [2, 2]


@pytest.mark.slow
def test_a_run_whose_worker_is_lost_is_tried_again_from_its_checkpoint(
    member: None, tmp_path: Path
) -> None:
    (run,) = wanted = runs(tmp_path, [0], "checkpoint_every=1")

    def strike() -> None:
        until((run.folder / "met").exists)
        until((run.folder / "progress.json").exists)
        parent = parent_of(json.loads((run.folder / "progress.json").read_text())["pid"])
        os.kill(parent_of(parent), signal.SIGKILL)

    striking = threading.Thread(target=strike)
    striking.start()
    (found,) = launched(wanted, "pause-once 0 5 0")
    striking.join()
    assert found.name == "finished", found
    assert tries(run.folder) == 2
    assert "resuming from" in (run.folder / "stdout.log").read_text()
    straight = ablate.run(ablate.compose(*run.arguments[:-2]), tmp_path / "straight")
    assert metrics(run.folder) == straight["metrics"]


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.mark.slow
def test_settings_that_ray_refuses_are_one_line(member: None, tmp_path: Path) -> None:
    wanted = runs(tmp_path, [0])
    with pytest.raises(UserError, match=r"^hydra.launcher.ray.remote: .*num_cpu"):
        launched(wanted, num_cpu=1)
    assert not wanted[0].folder.exists()


# Without a Ray


def test_a_folder_that_a_node_does_not_see_is_said(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="output_dir must lie where all nodes look"):
        train([], str(tmp_path / "no"), modules=[], grace=1, cwd=".", typed=None)


@pytest.mark.parametrize("grace", [0, -1, None, "long", True])
def test_a_grace_without_a_meaning_is_refused(grace: Any) -> None:
    with pytest.raises(UserError, match=f"hydra.launcher.grace={grace}: must be"):
        Settings(init={}, remote={}, grace=grace)


def test_a_missing_package_is_one_line(
    ablate_command: Callable[..., tuple[int, str, str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(launcher, "find_spec", lambda name: None)
    code, _, err = ablate_command(*study_line(tmp_path, "outputs"), "hydra/launcher=ray")
    assert (code, err) == (2, "ablate: hydra/launcher=ray needs the package ray: pip install ray\n")
    assert not (tmp_path / "outputs").exists()
