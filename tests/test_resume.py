"""Stopped anywhere and started again, a run ends as one never stopped, bit for bit."""

import itertools
import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import accident
import lightning.pytorch as L
import pytest
import torch
from tiny import overrides

import ablate
from ablate.errors import Interrupted
from ablate.run_files import best_weights
from ablate.run_files.sealed import read_weights
from ablate.task.causal_lm import CausalLM
from ablate.training import train as training
from ablate.training.checkpoint import STOPS, Checkpoints
from ablate.training.curves import Curves

WITH_FIGURES = True  # tests/conftest.py

# The last validation stands before the last step: the last weights are looked at after training.
SHORT = ("trainer.max_steps=14", "checkpoint_every=3")
LONG = ("trainer.max_steps=300", "trainer.val_check_interval=50", "checkpoint_every=7")
FORK = multiprocessing.get_context("fork")  # a process without the seconds that importing takes


def outcome(folder):
    """Everything that must be equal: the result, curves, the weights that were kept."""
    result = json.loads((folder / "result.json").read_text())
    told = {
        name: result[name]
        for name in ("status", "error", "metrics", "steps", "best_step", "kernels")
    }
    kept = {
        f"{name} {parameter}": value
        for name, weights in (
            ("last", load(folder)["state_dict"]),
            ("best", read_weights(best_weights(folder))),
        )
        for parameter, value in weights.items()
    }
    return told, (folder / "metrics.csv").read_text(), kept


def load(folder, name="last.ckpt"):
    return torch.load(folder / "checkpoints" / name, weights_only=True)


def assert_equal(stopped, straight):
    """The outcome of two folders is the same, and the stopped one holds nothing half-written."""
    (told, curves, kept), expected = outcome(stopped), outcome(straight)
    assert told["status"] == "finished"
    assert (told, curves) == expected[:2]
    assert all(torch.equal(kept[name], expected[2][name]) for name in expected[2])
    assert not list((stopped / "checkpoints").glob("*.tmp"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The run that is never stopped: its config and its folder."""
    folder = tmp_path_factory.mktemp("whole")
    cfg = ablate.compose(*overrides(folder, *SHORT))
    ablate.run(cfg, folder / "run")
    return cfg, folder / "run"


def strike(cfg, folder, place, *, when=lambda *args: True, number=signal.SIGKILL, times=1):
    """Start a run in a process of its own and send it a signal, where it calls `place`.

    place: (owner, name of a function). when: whether this call is the one, by its arguments.
    times: how often, at once.
    Returns the exit code: of a death, minus the signal's number; 130 of a stop on request.
    """

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


def at_step(step):
    """The place of a training step, and when it is that one; counted from 0."""
    return {"place": (CausalLM, "loss"), "when": lambda task, *_: task.global_step == step}


@pytest.mark.usefixtures("no_figures")
@pytest.mark.parametrize(
    "step", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 3, 4, 5, 8, 11, 13))]
)
def test_death_at_any_step(whole, tmp_path, step):
    cfg, straight = whole
    assert strike(cfg, tmp_path, **at_step(step)) == -signal.SIGKILL
    assert json.loads((tmp_path / "result.json").read_text())["status"] == "running"
    ablate.run(cfg, tmp_path)
    assert_equal(tmp_path, straight)


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
first, *later = MOMENTS


@pytest.mark.parametrize(
    "moment", [first, *(pytest.param(name, marks=pytest.mark.slow) for name in later)]
)
def test_death_at_a_bad_moment(whole, tmp_path, capsys, moment):
    cfg, straight = whole
    assert strike(cfg, tmp_path, **MOMENTS[moment]) == -signal.SIGKILL
    found = {path.name for path in (tmp_path / "checkpoints").iterdir()}
    ablate.run(cfg, tmp_path)
    if moment == first:
        assert found == {"previous.ckpt", "best.safetensors", "last.tmp"}
        before = tmp_path / "checkpoints" / "previous.ckpt"
        assert f"resuming from {before}" in capsys.readouterr().out
    assert_equal(tmp_path, straight)


@pytest.mark.usefixtures("no_figures")
def test_a_damaged_checkpoint_is_reported_and_the_one_before_used(whole, tmp_path, capsys):
    cfg, straight = whole
    strike(cfg, tmp_path, **at_step(9))
    last = tmp_path / "checkpoints" / "last.ckpt"
    last.write_bytes(last.read_bytes()[:-99])
    ablate.run(cfg, tmp_path)
    said = capsys.readouterr().out
    assert "last.ckpt cannot be read" in said
    assert "previous.ckpt" in said
    assert_equal(tmp_path, straight)


@pytest.mark.usefixtures("no_figures")
def test_what_a_kill_left_half_written_does_no_harm(whole, tmp_path):
    cfg, straight = whole
    strike(cfg, tmp_path, **at_step(9))
    for name in ("last.tmp", "best.tmp"):
        (tmp_path / "checkpoints" / name).write_bytes(b"PK half of a checkpoint")
    strike(cfg, tmp_path, **at_step(10))
    assert not list((tmp_path / "checkpoints").glob("*.tmp"))
    ablate.run(cfg, tmp_path)
    assert_equal(tmp_path, straight)


@pytest.mark.usefixtures("no_figures")
def test_accumulated_gradients_resume(tmp_path):
    more = ("trainer.accumulate_grad_batches=2", "trainer.max_steps=6", "checkpoint_every=1")
    cfg = ablate.compose(*overrides(tmp_path, *more))
    ablate.run(cfg, tmp_path / "whole")
    eighth = nth(8)  # the second half of the fourth step
    strike(cfg, tmp_path / "stopped", (CausalLM, "loss"), when=eighth)
    assert load(tmp_path / "stopped")["global_step"] == 3
    ablate.run(cfg, tmp_path / "stopped")
    assert_equal(tmp_path / "stopped", tmp_path / "whole")


# Stopping on request


@pytest.mark.usefixtures("no_figures")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupt_saves_and_says_so(whole, tmp_path, number):
    cfg, straight = whole
    assert strike(cfg, tmp_path, **at_step(6), number=number) == 130
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["status"] == "failed"
    assert f"stopped by {number.name} after step 7" in result["error"]
    assert load(tmp_path)["global_step"] == 7
    ablate.run(cfg, tmp_path)
    assert_equal(tmp_path, straight)


@pytest.mark.usefixtures("no_figures")
@pytest.mark.parametrize(("number", "step"), [(signal.SIGINT, 6), (signal.SIGTERM, 7)])
def test_ctrl_c_twice_saves_nothing_and_sigterm_twice_is_as_once(whole, tmp_path, number, step):
    """Slurm says SIGTERM several times when it preempts a job."""
    cfg, straight = whole
    assert strike(cfg, tmp_path, **at_step(6), number=number, times=2) == 130
    assert load(tmp_path)["global_step"] == step
    ablate.run(cfg, tmp_path)
    assert_equal(tmp_path, straight)


@pytest.mark.parametrize(
    ("number", "moment"),
    [
        (signal.SIGINT, "after the last step"),
        pytest.param(signal.SIGTERM, "after the last step", marks=pytest.mark.slow),
        pytest.param(signal.SIGINT, "in the validation after training", marks=pytest.mark.slow),
    ],
)
def test_an_interrupt_after_the_last_step_ends_as_one_before(whole, tmp_path, moment, number):
    cfg, straight = whole
    assert strike(cfg, tmp_path, **MOMENTS[moment], number=number) == 130
    assert "resumes from" in json.loads((tmp_path / "result.json").read_text())["error"]
    ablate.run(cfg, tmp_path)
    assert_equal(tmp_path, straight)


@pytest.mark.usefixtures("no_figures")
def test_a_closed_terminal_stops_no_run_under_nohup_and_signals_mean_what_they_did(whole, tmp_path):
    cfg, straight = whole
    own = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    before = [signal.getsignal(number) for number in STOPS]
    original = CausalLM.loss

    def loss(task, batch):
        os.kill(os.getpid(), signal.SIGHUP)
        return original(task, batch)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CausalLM, "loss", loss)
        ablate.run(cfg, tmp_path)
    after = [signal.getsignal(number) for number in STOPS]
    signal.signal(signal.SIGHUP, own)
    assert after == before
    assert_equal(tmp_path, straight)


@pytest.mark.usefixtures("no_figures")
def test_other_code_than_before_is_said(tmp_path, capsys):
    cfg = ablate.compose(*overrides(tmp_path, *SHORT, accident.OVERRIDE))
    folder = tmp_path / "run"
    strike(cfg, folder, (CausalLM, "loss"), when=lambda task, *_: task.global_step == 9)
    ablate.run(cfg, folder)
    assert "other code" not in capsys.readouterr().out
    for changed, changes in (
        ("ablate", {"source": "0" * 16}),
        ("accident", {"own_parts": {"accident": "0" * 16}}),
    ):
        path = folder / "provenance.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))
        (folder / "result.json").unlink()
        ablate.run(cfg, folder)
        line = f"ablate: other code than at this run's last try: {changed}; it resumes"
        assert line in capsys.readouterr().out.splitlines()


# Processes that are stopped from outside, at moments that nobody chose


@pytest.fixture(scope="module")
def long(tmp_path_factory):
    """A run long enough to be caught in the middle: its overrides and its folder."""
    folder = tmp_path_factory.mktemp("long")
    arguments = overrides(folder, *LONG)
    ablate.run(ablate.compose(*arguments), folder / "run")
    return arguments, folder / "run"


def next_checkpoint(folder, process, seconds=60.0):
    """Waits until the process has written one."""
    last = folder / "checkpoints" / "last.ckpt"
    before, until = written(last), time.monotonic() + seconds
    while written(last) == before:
        assert process.poll() is None, "the run ended before it could be stopped"
        assert time.monotonic() < until
        time.sleep(0.01)


def written(path):
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:  # not yet, or between two renames
        return 0


@pytest.mark.slow
def test_the_command_resumes_after_signals(long, tmp_path):
    arguments, straight = long
    line = [sys.executable, "-m", "ablate", *arguments, f"hydra.run.dir={tmp_path}"]
    for number, code in ((signal.SIGKILL, -9), (signal.SIGINT, 130)):
        process = subprocess.Popen(
            line, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        next_checkpoint(tmp_path, process)
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == code
        assert "Traceback" not in errors
    subprocess.run(line, check=True, capture_output=True)
    assert_equal(tmp_path, straight)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_death_at_random_moments_again_and_again(long, tmp_path, seed):
    arguments, straight = long
    line = [sys.executable, "-m", "ablate", *arguments, f"hydra.run.dir={tmp_path}"]
    rng, kills, code = random.Random(seed), 0, None
    while code is None:
        # Not FORK: after torch.compile in the same process a fork cannot train.
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
    assert_equal(tmp_path, straight)
