"""hydra/launcher=ray on a real Ray of one node on this machine, private to these tests."""

import os
import secrets
import signal
import subprocess
import sys
import threading
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import yaml
from make_launch import (
    MODULES,
    ended,
    environment,
    goes_on,
    met,
    metrics,
    parent_of,
    paths,
    process_of,
    require_as_locally,
    runs,
    study_line,
    tries,
    until,
)
from refusals import refused

import ablate
from ablate.config.tree import config_dir
from ablate.study.launch import ray as launcher
from ablate.study.launch.forks import Start
from ablate.study.launch.ray import RaySettings, launch, train
from ablate.study.launch.state import state

pytest_plugins = ["command_line", "make_launch"]


CPUS = 4  # said to Ray: a test's runs are small


@pytest.fixture(scope="module")
def cluster():
    """The environment of those who belong to it."""
    if not find_spec("ray"):  # to import it would fix its mode of authentication
        pytest.skip("not installed: the Python package ray")
    own = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    # Not below pytest's own folder: the names of sockets are short.
    with TemporaryDirectory(prefix="ray") as folder:
        place = Path(folder)
        command = [
            *(sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block"),
            *("--port=0", "--node-ip-address=127.0.0.1", f"--num-cpus={CPUS}"),
            *("--include-dashboard=false", f"--temp-dir={place}"),
            *("--object-store-memory=80000000", "--disable-usage-stats"),
        ]
        with open(place / "started.out", "w") as out:
            process = subprocess.Popen(
                command, stdout=out, stderr=out, env=environment(**own), start_new_session=True
            )
        address = place / "ray_current_cluster"
        try:
            until(lambda: address.exists() or process.poll() is not None, 300)
            assert address.exists(), (place / "started.out").read_text()
            yield own | {"RAY_ADDRESS": address.read_text().strip()}
        finally:
            process.terminate()  # and with it what it has started
            process.wait()


@pytest.fixture
def member(cluster, monkeypatch):
    """This process belongs to it."""
    for name, value in cluster.items():
        monkeypatch.setenv(name, value)


def around(accident):
    """The runtime environment in which runs meet an accident."""
    return {"env_vars": {"ACCIDENT": accident, "PYTHONPATH": environment()["PYTHONPATH"]}}


def on_ray(folder, *more, accident=""):
    variables = around(accident)["env_vars"]
    written = ", ".join(f"{name}: '{value}'" for name, value in variables.items())
    own = f"+hydra.launcher.ray.init.runtime_env={{env_vars: {{{written}}}}}"
    return study_line(folder, "ray", own, "hydra/launcher=ray", *more)


@pytest.mark.slow
@pytest.mark.usefixtures("member")
def test_a_study_measures_what_it_does_locally_and_only_what_failed_runs_again(command, tmp_path):
    code, said = ended(command(*on_ray(tmp_path, accident="die 0 5 1")))
    assert code == 1, said
    assert "2 of 4 runs are not finished" in said
    assert "killed by SIGKILL (perhaps out of memory); last lines: " in said
    assert "step 4/" in said
    line = on_ray(tmp_path)
    for each in [command(*line), command(*line)]:  # two at once do no run twice
        code, said = ended(each)
        assert code == 0, said
    study = tmp_path / "ray" / "mine"
    assert [tries(folder) for folder in paths(study)] == [1, 1, 2, 2]
    require_as_locally(command, tmp_path, study)


@pytest.mark.slow
@pytest.mark.usefixtures("member")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_controller_is_stopped_and_started_again(command, tmp_path, number):
    """Its runs write checkpoints and end, although the cluster lives on."""
    first = command(*on_ray(tmp_path, "study.seeds=1", accident="pause-once 0 5 0"))
    found = paths(tmp_path / "ray" / "mine")
    for folder in found:
        until(met(folder))
    first.send_signal(number)
    code, said = ended(first)
    if number == signal.SIGTERM:
        assert code == 130, said
        assert "ablate: stopped by SIGTERM; the same command resumes" in said
    until(lambda: [state(folder).name for folder in found] == ["missing"] * 2)
    assert all("stopped by SIGTERM after step 6" in state(folder).detail for folder in found)
    code, said = ended(command(*on_ray(tmp_path, "study.seeds=1")))
    assert code == 0, said
    assert [tries(folder) for folder in found] == [2, 2]


@pytest.mark.slow
@pytest.mark.usefixtures("member")
def test_a_run_whose_worker_is_lost_is_tried_again_from_its_checkpoint(tmp_path):
    (run,) = wanted = runs(tmp_path, [0], "checkpoint_every=1")

    def strike():
        until(met(run.folder))
        os.kill(parent_of(parent_of(process_of(run.folder))), signal.SIGKILL)

    threading.Thread(target=strike, daemon=True).start()
    file = yaml.safe_load((config_dir() / "hydra/launcher/ray.yaml").read_text())["ray"]
    init = file["init"] | {"runtime_env": around("pause-once 0 5 0")}
    (found,) = launch(wanted, RaySettings(init, file["remote"], grace_period=60), modules=MODULES,
                     environment={})  # fmt: skip
    assert found.name == "finished", found
    assert tries(run.folder) == 2
    assert goes_on(run.folder)
    straight = ablate.run(ablate.compose(*run.planned.overrides), tmp_path / "straight")
    assert metrics(run.folder) == straight["metrics"]


# Without a Ray


def test_what_cannot_be_is_said(tmp_path):
    with refused("output_dir must be on a filesystem shared", by=FileNotFoundError):
        run = Start([], "", str(tmp_path / "no"))
        train(run, modules=[], grace=1, cwd=".", environment={})

    for wrong in (0, None, "long", True):
        with refused("hydra.launcher.grace_period=", ": must be"):
            RaySettings(init={}, remote={}, grace_period=wrong)


def test_a_missing_package_is_one_line(ablate_command, tmp_path, monkeypatch):
    monkeypatch.setattr(launcher, "find_spec", lambda name: None)
    code, _, err = ablate_command(*study_line(tmp_path, "outputs"), "hydra/launcher=ray")
    assert (code, err) == (2, "ablate: hydra/launcher=ray needs the package ray: pip install ray\n")
    assert not (tmp_path / "outputs").exists()
