"""The processes of a run: who starts them, and one that is lost, in one line."""

import os
import subprocess
import sys

import pytest
from lightning.pytorch.plugins.environments import LightningEnvironment, SLURMEnvironment
from refusals import refused
from tiny import in_a_process
from torch.distributed import DistNetworkError, DistStoreError

from ablate.config.composition import compose
from ablate.config.keys import to_dict
from ablate.errors import LostProcess, RunFailed, unwrap
from ablate.machine import processes
from ablate.machine.processes import FIRST, speaks, watching
from ablate.training.preflight import check_machine
from ablate.training.trainer import environment

CLOSED = "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:5] Connection closed by peer [::1]"
RESUMES = "the same command resumes"
TWO = ("trainer=ddp", "trainer.accelerator=cpu", "trainer.devices=2")
NODES = (*TWO, "trainer.num_nodes=2")
SHELL = {"SLURM_JOB_ID": "1", "SLURM_NTASKS": "2", "SLURM_NNODES": "2"}  # of salloc or sbatch
SRUN = {**SHELL, "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NUM_NODES": "1"}
TORCHRUN = {"TORCHELASTIC_RUN_ID": "x", "WORLD_SIZE": "2"}
BY_HAND = {"MASTER_ADDR": "here", "NODE_RANK": "1"}


@pytest.mark.parametrize(
    "error", [RuntimeError(CLOSED), DistNetworkError("x"), DistStoreError("x")]
)
def test_what_torch_raises_for_a_process_that_is_gone(error):
    assert isinstance(line := unwrap(error), LostProcess)
    assert RESUMES in str(line)


def started(code):
    return subprocess.Popen([sys.executable, "-c", code])


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (
            "import os; os.kill(os.getpid(), 9)",
            f"process 2 of 3 was killed by SIGKILL.*{RESUMES}",
        ),
        ("exit(3)", "process 2 of 3 ended with code 3; see its output for the reason$"),
    ],
)
def test_the_first_process_says_which_one_is_lost(monkeypatch, code, says):
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    monkeypatch.setenv(FIRST, "")
    children = [started("pass"), started(code)]
    with pytest.raises(LostProcess, match=says), watching(lambda: children, pytest.fail):
        raise RuntimeError(CLOSED)
    with pytest.raises(RunFailed, match="nan"), watching(lambda: children, pytest.fail):
        raise RunFailed("nan")


WAITS = """
import os, subprocess, sys, time
from ablate.machine import processes
processes.GRACE, child = 0.2, subprocess.Popen([sys.executable, "-c", "exit(3)"])
with processes.watching(lambda: CHILDREN, lambda line: open("failed", "w").write(line)):
    time.sleep(60)
"""


@pytest.mark.parametrize(
    ("rank", "line"),
    [
        (0, "process 1 of 2 ended with code 3; see its output for the reason"),
        (1, f"the first process of this run was killed (perhaps out of memory); {RESUMES}"),
    ],
)
def test_a_process_that_waits_for_a_lost_one_ends(tmp_path, rank, line):
    code = WAITS.replace("CHILDREN", "[]" if rank else "[child]")
    gone = {"LOCAL_RANK": str(rank), FIRST: "1"}
    done = in_a_process("-c", code, folder=tmp_path, **gone)
    assert (done.returncode, done.stderr) == (1, f"ablate: {line}\n")
    assert (tmp_path / "failed").read_text() == line


@pytest.mark.parametrize(
    ("rank", "first", "lost", "said"),
    [
        ("0", None, RunFailed("x"), True),
        ("1", None, RunFailed("x"), False),  # of torchrun
        ("1", "none", RunFailed("x"), True),  # a variable that is left over
        ("1", "alive", LostProcess("x"), False),  # the first one says it
        ("1", "alive", RunFailed("x"), True),  # it is of this process alone
        ("1", "gone", RunFailed("x"), False),  # the first one had it too
        ("1", "gone", LostProcess("x"), True),
        ("2", "gone", LostProcess("x"), False),
    ],
)
def test_one_process_says_how_the_run_ended(monkeypatch, rank, first, lost, said):
    monkeypatch.setattr(processes, "ALIKE", 0.1)
    monkeypatch.setenv("LOCAL_RANK", rank)
    monkeypatch.delenv(FIRST, raising=False)
    if first == "none":
        monkeypatch.delenv("WORLD_SIZE", raising=False)
    else:
        monkeypatch.setenv("WORLD_SIZE", "2")
    if first in ("alive", "gone"):
        monkeypatch.setenv(FIRST, str(os.getppid()) if first == "alive" else "1")
    assert speaks(lost) == said


@pytest.fixture
def around(monkeypatch):
    """Sets the environment of a run."""
    for name in list(os.environ):
        if name.startswith(("SLURM_", "TORCHELASTIC_", "MASTER_", "NODE_RANK")):
            monkeypatch.delenv(name)
    return lambda more: [monkeypatch.setenv(*item) for item in more.items()]


@pytest.mark.parametrize(
    ("variables", "typed", "line"),
    [
        ({}, TWO, ""),
        (SHELL, (), ""),
        (SHELL, TWO, ""),
        (SRUN, TWO, ""),
        (SRUN, (), "srun has started 2 processes, and trainer.devices=1 with trainer.num_nodes=1"),
        (SRUN | {"SLURM_PTY_PORT": "9"}, (), ""),  # a shell that srun --pty opened
        (SRUN | {"SLURM_STEP_NUM_NODES": "2"}, TWO, "srun has started 2 processes on 2 nodes"),
        (SRUN | TORCHRUN, TWO, ""),
        (TORCHRUN, (), "torchrun has started 2 processes, and trainer.devices=1"),
        ({}, NODES, "trainer.num_nodes=2: the rank of this machine is not set"),
        (SHELL, NODES, "trainer.num_nodes=2: the rank of this machine is not set"),
        (BY_HAND, NODES, ""),
    ],
)
def test_who_starts_the_processes(around, variables, typed, line):
    around(variables)
    values = to_dict(compose(*typed))
    if line:
        with refused(line):
            check_machine(values)
        return
    check_machine(values)
    by_slurm = SLURMEnvironment if variables == SRUN else LightningEnvironment
    in_slurm = "SLURM_JOB_ID" in variables and "WORLD_SIZE" not in variables
    chosen = environment(values["trainer"]["devices"])
    assert type(chosen) is (by_slurm if in_slurm else type(None))
