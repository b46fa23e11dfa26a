"""The local launcher: what its runs find, and what it hands to them."""

import json
import shlex
import sys
import time
from pathlib import Path
from unittest.mock import Mock

import pytest
import teller
import torch
from make_launch import environment, launched, printed, runs, settings, until
from omegaconf import OmegaConf
from tiny import in_a_process

import ablate
from ablate.config.tree import config_dir
from ablate.errors import UserError
from ablate.study import sweeper
from ablate.study.launch import forks, local
from ablate.study.launch.forks import Event
from ablate.study.launch.jobs import job_return
from ablate.study.launch.run import ScheduledRun
from ablate.study.launch.state import WORKER, State, held, state
from ablate.study.plan.planned_run import OF_SWEEPS, Command, PlannedRun
from ablate.training.trunk import SharedSteps, branch_file

TWO = ("trainer=ddp", "trainer.accelerator=cpu", "trainer.devices=2")


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """A run of one process and one of two, side by side, on a machine that seems to have GPUs."""
    folder = tmp_path_factory.mktemp("told")
    wanted = [*runs(folder, [0], teller.OVERRIDE), *runs(folder, [1], teller.OVERRIDE, *TWO)]
    around = {"CUDA_VISIBLE_DEVICES": "4,7,9", "OMP_NUM_THREADS": ""}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "device_count", lambda: 3)
        patch.setattr(local.os, "sched_getaffinity", lambda _: {0, 1})
        found = launched(wanted, more=around, gpus_per_run=1)
    assert [one.name for one in found] == ["finished", "finished"], found
    return wanted


def found_by(run):
    """What each process found, by rank."""
    lines = [line for line in printed(run.folder).splitlines() if line.startswith("found {")]
    return sorted((json.loads(line[6:]) for line in lines), key=lambda found: found["rank"])


@pytest.mark.ci
def test_everything_printed_is_in_the_folder_of_a_run(told):
    """After the command, which is what a person can type."""
    for run in told:
        assert not (run.folder / "queued.json").exists()
        assert not (run.folder / "progress.json").exists()
        first, *rest = printed(run.folder).splitlines()
        assert first == run.typed
        assert shlex.split(first)[3:-2] == [*run.planned.overrides]
        assert {"by the descriptor", "by another program"} <= set(rest)
        assert not [line for line in rest if "leaked" in line or "Warning" in line]


@pytest.mark.ci
def test_a_run_finds_the_command_line_and_its_share_of_the_machine(told):
    alone, both = told
    (found,) = found_by(alone)
    assert (found["module"], found["arguments"]) == (WORKER, alone.prepare().arguments)
    assert (found["threads"], found["gpus"], found["full_error"]) == (1, "4", None)
    assert found["session"] == found["pid"]  # Ctrl-C at the terminal is not for it
    first, second = found_by(both)
    assert (first["rank"], second["rank"], first["processes"]) == (0, 1, 2)
    assert second["arguments"] == first["arguments"] == both.prepare().arguments
    assert first["gpus"] == second["gpus"] == "7"
    assert second["session"] == first["pid"]


RUN = """
import fcntl, os, signal, subprocess, sys
signal.signal(signal.SIGTERM, lambda *_: (print("asked to stop"), sys.exit(130)))
lock = open("lock", "w")
fcntl.flock(lock, fcntl.LOCK_EX)
subprocess.Popen(["sleep", "600"], pass_fds=[lock.fileno()])
print("it has started another process", flush=True)
os._exit(1) if sys.argv[1] == "dies" else signal.pause()
"""


@pytest.mark.parametrize("how", ["dies", "is killed", "loses its launcher"])
def test_nothing_that_a_run_has_started_outlives_it(tmp_path, monkeypatch, how):
    """As where forking is not safe, so that a run is a new interpreter, here of its own ablate."""
    place = tmp_path / "own"
    *packages, module = WORKER.split(".")
    for number in range(len(packages)):
        folder = place.joinpath(*packages[: number + 1])
        folder.mkdir(parents=True)
        (folder / "__init__.py").touch()
    (folder / f"{module}.py").write_text(RUN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(forks, "PRELOADED", False)
    parent = forks.Forks([], environment=environment(), grace=10)
    typed = f"python -m ablate {how}"
    parent.start(0, forks.Start([how], typed, str(tmp_path)), {"PYTHONPATH": str(place)})
    log = tmp_path / "stdout.log"
    until(lambda: log.exists() and "another process" in log.read_text(), 30)
    events = parent.events(1)
    if how == "is killed":
        parent.kill(0)
    if how != "loses its launcher":
        while len(events) < 2:
            events += parent.events(1)
        assert [event.code for event in events] == [None, -9 if how == "is killed" else 1]
    parent.close()
    until(lambda: not held(tmp_path / "lock"), 5)
    said = log.read_text().splitlines()
    assert said[0] == typed
    assert said[2:] == ["asked to stop"] * (how == "loses its launcher")


def test_a_parent_that_cannot_start_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(ablate.RunFailed, match="no process can be started"):
        launched(runs(tmp_path, [0]))


class MadeUp:
    """A parent of no processes: what a run's argument says happens to it."""

    def __init__(self):
        self.started, self.happened, self.until = [], [], time.monotonic() + 20

    def start(self, number, run, environment):
        (what,) = run.arguments
        self.started.append(what)
        self.happened.append(Event(number))
        if what == "finishes":
            Path(run.folder, "result.json").write_text('{"status": "finished"}')
        if what != "hangs":
            self.happened.append(Event(number, code=0 if what == "finishes" else -9))

    def events(self, seconds):
        time.sleep(seconds / 10)
        assert time.monotonic() < self.until
        happened, self.happened = self.happened, []
        return happened

    def ask(self, run):
        self.happened.append(Event(run, code=130))

    def close(self):
        pass


@pytest.fixture
def made_up(tmp_path, monkeypatch):
    """What is started, and the launcher of runs that are made up."""
    parent = MadeUp()
    monkeypatch.setattr(local, "Forks", lambda *_, **__: parent)
    start = lambda run: forks.Start([*run.planned.overrides], "", str(run.folder))  # noqa: E731
    monkeypatch.setattr(ScheduledRun, "prepare", start)

    def launch(*what, study="s", shared=None, **own):
        planned = (
            PlannedRun("", 0, "", "", "run", (one,), shared=shared if n == 0 else None)
            for n, one in enumerate(what)
        )
        wanted = [ScheduledRun(tmp_path / study / f"{n}", one) for n, one in enumerate(planned)]
        one_by_one = settings(max_parallel_runs=1, **own)
        return local.launch(wanted, one_by_one, modules=[], environment={})

    return parent.started, launch


def test_what_fails_or_takes_too_long_is_tried_again(made_up):
    """And with fail_fast nothing is started after it."""
    started, launch = made_up
    found = launch("finishes", "dies", "hangs", "finishes", retries=1, timeout=0.1)
    assert started == ["finishes", "dies", "dies", "hangs", "hangs", "finishes"]
    assert [one.name for one in found] == ["finished", "failed", "failed", "finished"]
    assert "hydra.launcher.timeout=0.1" in found[2].detail
    started.clear()
    found = launch("finishes", "dies", "finishes", study="t", fail_fast=True, retries=1)
    assert started == ["finishes", "dies", "dies"]  # further tries of a run come first
    assert [one.name for one in found] == ["finished", "failed", "missing"]


@pytest.mark.parametrize("saves", [False, True])
def test_a_branch_waits_for_its_state_or_the_end_of_the_longer_run(made_up, tmp_path, saves):
    """The first run begins at a state of the second, which saves it or is stopped without."""
    started, launch = made_up
    if saves:
        (state_file := branch_file(tmp_path / "s" / "1", "")).parent.mkdir(parents=True)
        state_file.touch()
    shared = SharedSteps({"folder": "../1", "run_id": "", "step": 5})
    found = launch("finishes", "hangs", "finishes", shared=shared, timeout=0.1)
    first, second = ("finishes", "hangs") if saves else ("hangs", "finishes")
    assert started == [first, second, "finishes"]
    assert [one.name for one in found] == ["finished", "failed", "finished"]


def test_a_full_disk_ends_the_launcher_and_leaves_no_run_taken(made_up, tmp_path, monkeypatch):
    full = Mock(side_effect=OSError(28, "No space left on device"))
    monkeypatch.setattr("ablate.study.launch.ending.write_json", full)
    with pytest.raises(OSError, match="No space left"):
        made_up[1]("dies", "dies")
    assert [state(tmp_path / "s" / name).name for name in "01"] == ["missing"] * 2


# Shares


def test_gpus_are_handed_out_and_more_than_there_are_refused(monkeypatch):
    assert local.gpus(2, 0, {}) == [{}, {}]
    for around, each, shares in (
        ({}, 2, ["0,1", "2,3"]),
        ({"CUDA_VISIBLE_DEVICES": "2,GPU-ab"}, 1, ["2", "GPU-ab"]),
        ({"CUDA_VISIBLE_DEVICES": "MIG-a,MIG-b"}, 1, ["MIG-a", "MIG-b"]),  # torch counts one
    ):
        monkeypatch.setattr(
            torch.cuda, "device_count", lambda mig="MIG" in str(around): 1 if mig else 4
        )
        found = local.gpus(2, each, around)
        assert [one["CUDA_VISIBLE_DEVICES"] for one in found] == shares
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    for seen, number in (("1,2,7", 3), ("", 0)):
        with pytest.raises(UserError, match=f"needs 4 GPUs, and this machine .* see {number}"):
            launched([], max_parallel_runs=2, gpus_per_run=2, more={"CUDA_VISIBLE_DEVICES": seen})


def test_slots_and_cores(monkeypatch):
    """Cores are divided between slots, unless the person has said how many."""
    monkeypatch.setattr(local.os, "sched_getaffinity", lambda _: set(range(8)))
    assert local.threads(3, {}) == {"OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "2"}
    assert local.threads(20, {})["OMP_NUM_THREADS"] == "1"
    assert local.threads(3, {"OMP_NUM_THREADS": "5"}) == {}
    for gpus, cores, each, slots in (
        (0, 2, 0, 2),
        (0, 64, 0, 4),
        (1, 64, 0, 1),  # runs that see all GPUs take turns
        (8, 64, 3, 2),
        (1, 64, 2, 1),  # and gpus() refuses it
    ):
        monkeypatch.setattr(torch.cuda, "device_count", lambda n=gpus: n)
        monkeypatch.setattr(local.os, "sched_getaffinity", lambda _, n=cores: set(range(n)))
        assert settings(max_parallel_runs="auto", gpus_per_run=each).at_once({}) == slots


def test_settings_without_a_meaning_are_refused():
    wrong = {"max_parallel_runs": (0, 1.5, True, None), "gpus_per_run": (-1,), "retries": ("many",),
             "timeout": (0, "1h"), "grace_period": (-1, None), "fail_fast": (1, "no")}  # fmt: skip
    for name, values in wrong.items():
        for value in values:
            with pytest.raises(UserError, match=f"hydra.launcher.{name}="):
                settings(**{name: value})


def test_a_plan_reads_the_settings_of_the_local_launcher():
    """Its time left is that of the runs at once."""
    of_local, of_slurm = (
        OmegaConf.load(config_dir() / "hydra" / "launcher" / f"{name}.yaml")
        for name in ("local", "slurm")
    )
    assert sweeper._settings(of_local) == settings(max_parallel_runs="auto", grace_period=60)
    assert sweeper._settings(of_slurm) is None


# Between Hydra and the launcher


def test_the_command_of_a_run_knows_nothing_of_its_sweep():
    typed = ("hydra.mode=MULTIRUN", "hydra/launcher=local", "hydra.launcher.max_parallel_runs=2")
    command = Command(("--config-dir", "/mine"), (*typed, "hydra.verbose=true"))
    overrides = ("sweep=x", "seed=1", "run_dir=/o/a=b-0123")
    run = ScheduledRun(Path("/o/a=b-0123"), PlannedRun("", 1, "", "", "run", overrides, command))
    assert shlex.split(run.typed)[3:] == [
        *["--config-dir", "/mine", "hydra.verbose=true", "sweep=x", "seed=1"],
        *["hydra.mode=RUN", 'run_dir="/o/a=b-0123"'],
    ]
    assert not OF_SWEEPS.match("hydra.runtime.x=1")


def test_hydra_gets_the_status_of_every_run(tmp_path):
    done = State("finished", result={"metric": {"name": "val/loss", "value": 1.5, "mode": "min"}})
    assert job_return(["seed=0"], tmp_path, done).return_value == 1.5
    failed = job_return(["seed=0"], tmp_path, State("failed", "killed by SIGKILL"))
    with pytest.raises(ablate.RunFailed, match="killed by SIGKILL"):
        failed.return_value  # noqa: B018


LOOK = """
import os, sys, threading
from ablate.study.launch.forks import ALWAYS, _preload
_preload([*ALWAYS, 'ablate.task.causal_lm', 'ablate.model.gpt', 'ablate.data.text'])
import torch
print(threading.active_count(), torch.cuda.is_initialized(), len(os.listdir('/proc/self/task')),
      'ablate.__main__' in sys.modules)
"""


@pytest.mark.slow
def test_the_parent_starts_no_threads_and_touches_no_gpu():
    """What was imported stays safe to fork."""
    found = in_a_process("-c", LOOK, **environment())
    assert found.stdout.split() == ["1", "False", "1", "False"], found.stderr
