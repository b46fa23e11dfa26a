"""Stopped anywhere and started again, a run ends as one never stopped, bit for bit."""

import itertools
import json
import multiprocessing
import os
import random
import re
import signal
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from errno import EACCES
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import accident
import lightning.pytorch as L
import pytest
import torch
from filelock import FileLock
from make_launch import until
from refusals import refused
from tiny import overrides

import ablate
from ablate.config.composition import Composition
from ablate.data.text import Text
from ablate.errors import Interrupted, RunFailed
from ablate.machine.stop import STOPS
from ablate.run_files import best_weights
from ablate.run_files.checkpoint_io import read_weights
from ablate.task.causal_lm import CausalLM
from ablate.training import record, trunk
from ablate.training import train as training
from ablate.training.checkpoint import MEASURED, Checkpoints
from ablate.training.curves import Curves
from ablate.training.trunk import SharedSteps, branch_file

WITH_FIGURES = True  # tests/conftest.py
quick = pytest.mark.usefixtures("no_figures")

# The last validation stands before the last step: the last weights are looked at after training,
# and are not the best at this rate.
SHORT = ("trainer.max_steps=14", "checkpoint_every=3", "optimizer.lr=0.05")
LONG = ("trainer.max_steps=300", "trainer.val_check_interval=50", "checkpoint_every=7")
ARM = "study.arm=a"  # is not compared with models of other keys, which is half of a start
FORK = multiprocessing.get_context("fork")  # a process without the seconds that importing takes
TOLD = ("status", "error", "metrics", "steps", "best_step", "kernels")


def result(folder):
    return json.loads((folder / "result.json").read_text())


def last(folder):
    return torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)


def assert_equal(stopped, straight):
    """The outcome of two folders is the same, and the stopped one holds nothing half-written."""
    found, expected = (
        {name: result(folder)[name] for name in TOLD}
        | {"curves": (folder / "metrics.csv").read_text()}
        for folder in (stopped, straight)
    )
    assert found["status"] == "finished"
    assert found == expected
    ended, wanted = (
        (last(folder)["state_dict"], read_weights(best_weights(folder)))
        for folder in (stopped, straight)
    )
    torch.testing.assert_close(ended, wanted, rtol=0, atol=0)
    assert not list((stopped / "checkpoints").glob("*.tmp"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The run that is never stopped: its config, as that of an arm, and its folder."""
    folder = tmp_path_factory.mktemp("whole")
    ablate.run(ablate.compose(*overrides(folder, *SHORT)), folder / "run")
    return ablate.compose(*overrides(folder, *SHORT, ARM)), folder / "run"


def goes_on(whole, folder):
    """The same run once more, to its end."""
    cfg, straight = whole
    ablate.run(cfg, folder)
    assert_equal(folder, straight)


def strike(cfg, folder, place, *, when=lambda *args: True, number=signal.SIGKILL, times=1):
    """Start a run in a process of its own and send it a signal, `times` at once, where it calls
    `place` (owner, name of a function) and `when` holds of the arguments. Returns the exit code: of
    a death, minus the signal's number; 130 of a stop on request."""

    def life():
        # The tests may run under nohup, or in the background of a shell.
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        now = nth(1, when)
        owner, name = place
        original = getattr(owner, name)

        def struck(*args, **kwargs):
            if now(*args):
                for _ in range(times):
                    os.kill(os.getpid(), number)
            return original(*args, **kwargs)

        setattr(owner, name, struck)
        try:
            ablate.run(cfg, folder)
        except Interrupted:
            sys.exit(130)

    process = FORK.Process(target=life)
    process.start()
    process.join(120)
    return process.exitcode


def assert_resumes(whole, folder, **moment):
    """Killed at that moment, the run ends as the one that is never stopped."""
    assert strike(whole[0], folder, **moment) == -signal.SIGKILL
    goes_on(whole, folder)


def at_step(step):
    """The place of a training step, and when it is that one; counted from 0."""
    return {"place": (CausalLM, "losses"), "when": lambda task, *_: task.global_step == step}


@quick
@pytest.mark.parametrize(
    "step", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 3, 4, 5, 8, 11, 13))]
)
def test_death_at_any_step(whole, tmp_path, step):
    assert strike(whole[0], tmp_path, **at_step(step)) == -signal.SIGKILL
    assert result(tmp_path)["status"] == "running"
    goes_on(whole, tmp_path)


@pytest.mark.ci
@quick
def test_a_killed_run_took_at_least_what_it_had_trained(whole, tmp_path, monkeypatch):
    assert strike(whole[0], tmp_path, **at_step(8)) == -signal.SIGKILL
    load = Curves.load_state_dict
    hours = {"train_seconds": 7200.0}  # at its last checkpoint
    monkeypatch.setattr(Curves, "load_state_dict", lambda self, state: load(self, state | hours))
    goes_on(whole, tmp_path)
    assert result(tmp_path)["wall_seconds"] > result(tmp_path)["train_seconds"] > 7200


def nth(number, when=lambda *args: True):
    """When that has been so for the n-th time."""
    calls = itertools.count(1)
    return lambda *args: when(*args) and next(calls) == number


def renames(name, content="", number=1):
    """When a file of that name, with that in it, is put in place for the n-th time."""

    def when(source, target):
        return Path(target).name == name and content.encode() in Path(source).read_bytes()

    return {"place": (os, "replace"), "when": nth(number, when)}


def validation(where):
    """The place of one after training, where a task or its checkpoints come to it."""
    state = lambda self, trainer, *_: (trainer if where[0] is Checkpoints else self.trainer).state  # noqa: E731
    return {"place": where, "when": lambda *args: state(*args).fn == "validate"}


MOMENTS = {
    "between the two renames": renames("last.ckpt", number=3),
    "before the end of a validation": {
        "place": (Checkpoints, "on_validation_end"),
        "when": lambda self, trainer, task: trainer.global_step == 8,
    },
    "before the checksum of a state is listed": renames("checksums.json", '"last.ckpt"', number=3),
    "before the best weights are in place": renames("best.safetensors", number=2),
    "before the last checkpoint is moved away": renames("previous.ckpt", number=2),
    "after the last step": {"place": (Curves, "on_train_end")},
    "after training": {"place": (L.Trainer, "validate")},
    "in the validation after training": validation((CausalLM, "evaluate")),
    "before the last weights are the best": validation((Checkpoints, "on_validation_end")),
    "before the best weights are measured": {"place": (L.Trainer, "validate"), "when": nth(2)},
    "before the maps are drawn": {"place": (training, "attention_figures")},
    "before the curves are in place": renames("curves.png"),
    "before the sample is in place": renames("sample.txt"),
    "before the result is in place": renames("result.json", '"finished"'),
}
first = next(iter(MOMENTS))


@pytest.mark.parametrize(
    "moment",
    [
        pytest.param(name, marks=pytest.mark.ci if name == first else pytest.mark.slow)
        for name in MOMENTS
    ],
)
def test_death_at_a_bad_moment(whole, tmp_path, capsys, moment):
    assert strike(whole[0], tmp_path, **MOMENTS[moment]) == -signal.SIGKILL
    places = tmp_path / "checkpoints"
    found = {path.name for path in places.iterdir()}
    goes_on(whole, tmp_path)
    if moment == first:
        assert {name for name in found if not name.startswith(".")} == {
            "previous.ckpt", "best.safetensors", "checksums.json",
        }  # fmt: skip
        assert f"resuming from {places / 'previous.ckpt'} at step 4\n" in capsys.readouterr().out


@pytest.mark.ci
@quick
def test_a_damaged_checkpoint_is_reported_and_the_one_before_used(whole, tmp_path, capsys):
    """And what a kill left half-written does no harm."""
    strike(whole[0], tmp_path, **at_step(9))
    places = tmp_path / "checkpoints"
    (places / "last.ckpt").write_bytes((places / "last.ckpt").read_bytes()[:-99])
    for name in ("last.tmp", "best.tmp", "older.tmp"):
        (places / name).write_bytes(b"PK half of a checkpoint")
    goes_on(whole, tmp_path)
    said = capsys.readouterr().out
    assert "last.ckpt cannot be read" in said
    assert "previous.ckpt" in said


@pytest.mark.ci
@quick
@pytest.mark.parametrize("precision", ["32-true", "64-true"])
def test_accumulated_gradients_resume(tmp_path, precision):
    more = ("trainer.accumulate_grad_batches=2", "trainer.max_steps=6", "checkpoint_every=1")
    cfg = ablate.compose(*overrides(tmp_path, *more, f"trainer.precision={precision}", ARM))
    ablate.run(cfg, tmp_path / "whole")
    eighth = nth(8)  # the second half of the fourth step
    strike(cfg, tmp_path / "stopped", (CausalLM, "losses"), when=eighth)
    assert last(tmp_path / "stopped")["global_step"] == 3
    goes_on((cfg, tmp_path / "whole"), tmp_path / "stopped")


def test_one_process_trains_in_a_folder(whole, tmp_path):
    with FileLock(tmp_path / ".lock"), refused("another process is training this run now"):
        ablate.run(whole[0], tmp_path)


# A full disk, and one that becomes read-only


@contextmanager
def disk(place, size):
    """A small file system in memory."""
    place.mkdir(exist_ok=True)
    line = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)]
    if os.geteuid() or subprocess.run(line, capture_output=True).returncode:
        pytest.skip("only root can mount a small disk, and not in every container")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


@quick
@pytest.mark.parametrize("logger", ["none", pytest.param("tensorboard", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "size", ["120k", *(pytest.param(kb, marks=pytest.mark.slow) for kb in ("8k", "48k", "200k"))]
)
def test_a_full_disk(whole, tmp_path, size, logger):
    cfg = ablate.compose(*overrides(whole[1].parent, *SHORT, ARM), f"logger={logger}")
    with disk(place := tmp_path / "run", size):
        with pytest.raises(RunFailed, match="No space left on device"):
            ablate.run(cfg, place)
        subprocess.run(["mount", "-o", "remount,size=64m", str(place)], check=True)
        goes_on((cfg, whole[1]), place)


@quick
def test_a_disk_that_becomes_read_only(whole, tmp_path, monkeypatch):
    loss = CausalLM.losses

    def struck(task, batch):
        if task.global_step == 6 and task.training:
            # Over the folder, since the file of the lock, which is open, forbids to remount it.
            run = str(tmp_path / "run")
            subprocess.run(["mount", "--bind", run, run], check=True)
            stack.callback(subprocess.run, ["umount", "-l", run], check=True)
            subprocess.run(["mount", "-o", "remount,bind,ro", run], check=True)
        return loss(task, batch)

    with disk(tmp_path, "64m"):  # or skipped
        with ExitStack() as stack, monkeypatch.context() as patch:
            patch.setattr(CausalLM, "losses", struck)
            with pytest.raises(RunFailed, match=r"Read-only file system; .* the same command"):
                ablate.run(whole[0], tmp_path / "run")
        goes_on(whole, tmp_path / "run")


@pytest.mark.ci
@quick
@pytest.mark.parametrize("taken", [False, True])
def test_a_folder_that_is_moved_while_its_run_trains(whole, tmp_path, monkeypatch, taken):
    """It ends soon, writes nothing where another run may be by now, and resumes."""
    loss, folder = CausalLM.losses, tmp_path / "run"

    def struck(task, batch):
        if task.global_step == 5 and task.training:
            folder.rename(tmp_path / "moved")
            if taken:
                folder.mkdir()
                (folder / ".lock").touch()
        return loss(task, batch)

    with monkeypatch.context() as patch:
        patch.setattr(CausalLM, "losses", struck)
        with pytest.raises(RunFailed, match=f"^{folder} was moved or removed while this run"):
            ablate.run(whole[0], folder)
    assert [path.name for path in tmp_path.glob("run/*")] == [".lock"] * taken
    assert last(tmp_path / "moved")["global_step"] == 4
    goes_on(whole, tmp_path / "moved")


@pytest.mark.ci
@quick
def test_a_file_that_is_refused_says_how_the_run_resumes_and_no_second_error_hides_it(
    whole, tmp_path, monkeypatch
):
    """As of a folder that is closed: what is to say so there cannot be written either."""
    path = tmp_path / "checkpoints" / "last.ckpt"
    with monkeypatch.context() as patch:
        denied = PermissionError(EACCES, "Permission denied", str(path))
        patch.setattr(Checkpoints, "_write", Mock(side_effect=denied))
        line = f"^{path}: Permission denied; when that is put right, the same command resumes$"
        with pytest.raises(RunFailed, match=line):
            ablate.run(whole[0], tmp_path)
        assert re.match(line, result(tmp_path)["error"])
        closed = PermissionError(EACCES, "Permission denied", str(tmp_path / "result.json"))
        patch.setattr(record, "write_json", Mock(side_effect=[None, None, closed]))
        with pytest.raises(RunFailed, match=line):
            ablate.run(whole[0], tmp_path)
        assert record.write_json.call_count == 3
    goes_on(whole, tmp_path)


# Stopping on request


@pytest.mark.ci
@quick
@pytest.mark.parametrize(
    ("number", "times", "step"),
    [
        (signal.SIGHUP, 1, 7),
        (signal.SIGINT, 2, 6),  # Ctrl-C twice saves nothing
        (signal.SIGTERM, 2, 7),  # Slurm says it several times when it preempts a job
    ],
)
def test_an_interrupt_saves_and_says_so(whole, tmp_path, number, times, step):
    assert strike(whole[0], tmp_path, **at_step(6), number=number, times=times) == 130
    if step == 7:
        assert result(tmp_path)["status"] == "failed"
        assert f"stopped by {number.name} after step 7" in result(tmp_path)["error"]
    assert last(tmp_path)["global_step"] == step
    goes_on(whole, tmp_path)


@quick
@pytest.mark.parametrize(
    "moment",
    [
        "after the last step",
        pytest.param("in the validation after training", marks=pytest.mark.slow),
    ],
)
def test_an_interrupt_after_the_last_step_ends_as_one_before(whole, tmp_path, moment):
    assert strike(whole[0], tmp_path, **MOMENTS[moment], number=signal.SIGINT) == 130
    assert "resumes from" in result(tmp_path)["error"]
    goes_on(whole, tmp_path)


@pytest.mark.ci
@quick
@pytest.mark.parametrize("step", [8, 14])
def test_a_stop_during_a_validation_does_not_wait_for_its_end(whole, tmp_path, step):
    """Checkpoints have the last step, and the validation is done anew."""
    more = [] if step == 8 else ["trainer.val_check_interval=7"]
    cfg = ablate.compose(*overrides(whole[1].parent, *SHORT, *more, ARM))
    if more:
        ablate.run(cfg, straight := tmp_path / "straight")
    seen, evaluate = tmp_path / "seen", CausalLM.evaluate

    def noted(task, batch):
        with seen.open("a") as file:
            file.write(f"{task.global_step} ")
        evaluate(task, batch)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CausalLM, "evaluate", noted)
        when = lambda task, _: task.global_step == step  # noqa: E731
        code = strike(
            cfg, tmp_path / "run", (CausalLM, "evaluate"), when=when, number=signal.SIGTERM
        )
    assert code == 130
    assert seen.read_text().split().count(str(step)) == 1
    assert f"stopped by SIGTERM after step {step}; " in result(tmp_path / "run")["error"]
    assert last(tmp_path / "run")["global_step"] == step
    goes_on((cfg, straight if more else whole[1]), tmp_path / "run")


STARTED, DRAWN = "while it started", "while its figures were plotted"
PHASES = {
    STARTED: {"place": (Text, "load")},
    MEASURED: validation((CausalLM, "evaluate")),
    f"{MEASURED} under a condition": {"place": (training, "measure_under")},
    DRAWN: MOMENTS["before the maps are drawn"],
}


@pytest.mark.ci
@pytest.mark.parametrize(
    ("phase", "number"),
    [*((phase, signal.SIGTERM) for phase in PHASES), (STARTED, signal.SIGUSR1)],
)
def test_a_stop_in_any_phase_is_said(whole, tmp_path, capfd, phase, number):
    more = ["evaluate={short: {data.seq_len: 8}}"] if "condition" in phase else []
    cfg = ablate.compose(*overrides(whole[1].parent, *SHORT, *more, ARM))
    assert strike(cfg, tmp_path, **PHASES[phase], number=number) == 130
    if phase == STARTED:
        assert not (tmp_path / "result.json").exists()
    else:
        told = f"stopped by {number.name} {phase.removesuffix(' under a condition')}; the same"
        assert told in result(tmp_path)["error"]
        assert result(tmp_path)["status"] == "failed"
        assert last(tmp_path)["global_step"] == 14


@quick
def test_a_closed_terminal_stops_no_run_under_nohup_and_signals_mean_what_they_did(
    whole, tmp_path, monkeypatch
):
    own = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    before = [signal.getsignal(number) for number in STOPS]
    original = CausalLM.losses

    def loss(task, batch):
        os.kill(os.getpid(), signal.SIGHUP)
        return original(task, batch)

    monkeypatch.setattr(CausalLM, "losses", loss)
    goes_on(whole, tmp_path)
    after = [signal.getsignal(number) for number in STOPS]
    signal.signal(signal.SIGHUP, own)
    assert after == before


@pytest.mark.ci
@quick
def test_other_code_than_before_is_said(tmp_path, capsys):
    cfg = ablate.compose(*overrides(tmp_path, *SHORT, ARM, accident.OVERRIDE))
    path = tmp_path / "run/provenance.json"
    strike(cfg, path.parent, **at_step(9))
    ablate.run(cfg, path.parent)
    assert "other code" not in capsys.readouterr().out
    changes = {"source": "0" * 16, "custom_code": {"accident": "0" * 16}}
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    (path.parent / "result.json").unlink()
    ablate.run(cfg, path.parent)
    line = "ablate: code changed since the last attempt (ablate, accident); resuming"
    assert line in capsys.readouterr().out.splitlines()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_the_command_resumes_after_ctrl_c_and_deaths_at_random_moments(tmp_path, seed):
    arguments = overrides(tmp_path, *LONG)
    ablate.run(ablate.compose(*arguments), tmp_path / "straight")
    folder = tmp_path / "stopped"
    line = [sys.executable, "-m", "ablate", *arguments, f"hydra.run.dir={folder}"]
    # Not FORK: after torch.compile in the same process a fork cannot train.
    process = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    until((folder / "checkpoints" / "last.ckpt").exists)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, "Traceback" in errors) == (130, False)
    rng, kills, code = random.Random(seed), 0, None
    while code is None:
        process = subprocess.Popen(line, stdout=subprocess.DEVNULL)
        try:
            # Ever longer lives: it ends on a slow machine too.
            code = process.wait(rng.uniform(1, 5) * 1.1**kills)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            kills += 1
    assert code == 0
    assert kills >= 1
    assert_equal(folder, tmp_path / "straight")


# One trunk for several budgets

BEGINS = 11  # the decay of the 14 steps of SHORT
WSD = (*SHORT, "schedule=wsd", "checkpoint_every=100")


class Budgets:
    """A run of 30 steps in `folder / "long"`, and one of 14 that begins at a state of it."""

    def __init__(self, folder, patch, *more):
        self.folder, self.patch, self.train = folder, patch, training.train
        self.short, self.long = (
            ablate.compose(*overrides(folder, *WSD, *more, f"trainer.max_steps={steps}", ARM))
            for steps in (14, 30)
        )
        self.id = Composition(self.short).id
        self.state = branch_file(folder / "long", self.id)
        self.begins = SharedSteps(
            {"folder": "../long", "run_id": Composition(self.long).id, "step": BEGINS}
        )
        self.saves = SharedSteps(branches={self.id: BEGINS})

    def run(self, cfg, name, shared=None, **strikes):
        """Train in that folder; with `strikes`, in a process that is killed."""
        self.patch.setattr(training, "train", partial(self.train, shared=shared))
        if strikes:
            assert strike(cfg, self.folder / name, **strikes) == -signal.SIGKILL
        else:
            ablate.run(cfg, self.folder / name)
        return self.folder / name


@quick
@pytest.mark.parametrize(
    "more",
    [
        (),
        pytest.param(("task.ema=0.8", "trainer.val_check_interval=11"), marks=pytest.mark.slow),
        pytest.param(("trainer.accumulate_grad_batches=2",), marks=pytest.mark.slow),
    ],
)
def test_a_branch_ends_as_a_run_of_its_own(tmp_path, monkeypatch, more):
    """Also if it is killed, or the longer run was between its two files."""
    both = Budgets(tmp_path, monkeypatch, *more)
    straight = both.run(both.short, "straight")
    both.run(both.long, "long", both.saves, place=(trunk, "write_state"))
    assert not both.state.exists()
    both.run(both.long, "long", both.saves)
    branch = both.run(both.short, "branch", both.begins, **at_step(BEGINS))
    assert last_step(branch) is None
    branch = both.run(both.short, "branch", both.begins)
    assert_equal(branch, straight)
    assert result(branch)["trunk"] == both.begins.trunk
    assert "trunk" not in result(straight)


@pytest.mark.ci
@quick
def test_the_state_for_a_branch_is_written_once(tmp_path, monkeypatch):
    """However many batches a step has."""
    both = Budgets(tmp_path, monkeypatch, "trainer.accumulate_grad_batches=3")
    written = Mock(side_effect=trunk.write_state)
    monkeypatch.setattr(trunk, "write_state", written)
    both.run(both.long, "long", both.saves)
    assert written.call_count == 1


def last_step(folder):
    """Of a run's last checkpoint, None without one."""
    return last(folder)["global_step"] if (folder / "checkpoints" / "last.ckpt").exists() else None


@pytest.mark.ci
@quick
def test_a_branch_resumes_from_its_own_checkpoint(tmp_path, monkeypatch):
    both = Budgets(tmp_path, monkeypatch, "trainer.val_check_interval=3")
    straight = both.run(both.short, "straight")
    both.run(both.long, "long", both.saves)
    branch = both.run(both.short, "branch", both.begins, **at_step(13))
    assert last_step(branch) == 12
    both.state.unlink()
    assert_equal(both.run(both.short, "branch", both.begins), straight)
    assert result(branch)["trunk"]["step"] == BEGINS


@pytest.mark.ci
@quick
@pytest.mark.parametrize("how", ["is missing", "checksum does not match", "is of other code"])
def test_without_the_state_of_the_longer_run_a_branch_trains_from_step_0(
    tmp_path, monkeypatch, capfd, how
):
    both = Budgets(tmp_path, monkeypatch)
    if how != "is missing":
        both.run(both.long, "long", both.saves)
    if how == "checksum does not match":
        both.state.write_bytes(both.state.read_bytes()[:-1])
    if how == "is of other code":
        monkeypatch.setattr(trunk, "VERSION", ["other", "2.0"])
    branch = both.run(both.short, "branch", both.begins)
    assert re.search(
        f"training from step 0, not from step 11 of .*: .*{how}", capfd.readouterr().out
    )
    assert result(branch)["status"] == "finished"
    assert "trunk" not in result(branch)
