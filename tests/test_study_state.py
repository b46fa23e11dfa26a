"""The state of a run is what its folder says, whoever looks and from wherever."""

import json
import os
import platform
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from filelock import FileLock
from make_study import arm, make_study

from ablate.study.launch import state as state_module
from ablate.study.launch.claim import Claim
from ablate.study.launch.ending import Mark, settle
from ablate.study.launch.state import RESUMES, State, held, state, state_alone, states

DEAD = 2**22 + 1  # above the largest pid of Linux


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "baseline-0123456789ab"
    made.mkdir()
    return made


def write(folder: Path, name: str = "result.json", **content: object) -> None:
    (folder / name).write_text(json.dumps(content))


def queue(folder: Path, **more: object) -> None:
    own = {"launcher": "local", "job": None, "host": platform.node(), "pid": os.getpid()}
    write(folder, "queued.json", **(own | {"time": "2026-11-20T16:00:00+00:00"} | more))


def test_an_end_is_what_the_result_says(folder):
    assert state(folder).name == state(folder / "nowhere").name == "missing"
    for status in ("finished", "failed", "refused"):
        write(folder, status=status, error="loss is nan")
        assert (state(folder).name, state(folder).detail) == (status, "loss is nan")
        assert state(folder).ended
    write(folder, status="failed", error=f"stopped by SIGTERM after step 7; {RESUMES} from there")
    assert state(folder).name == "missing"  # it was stopped on request
    assert "step 7" in state(folder).detail


def test_running_is_a_lock_that_is_held(folder):
    write(folder, status="running", error=None)
    write(folder, "progress.json", step=30, steps=400, rate=2.5, pid=17, host="desk")
    with FileLock(folder / ".lock"):
        now = state(folder)
        assert (now.name, now.detail) == ("running", "pid 17 on desk")
        assert (now.step, now.steps, now.rate) == (30, 400, 2.5)
    (folder / "stdout.log").write_text("python -m ablate seed=0\nstep 30\nMemoryError\n")
    died = state(folder)
    assert (died.name, died.step) == ("failed", 30)
    assert died.detail == "died: step 30 | MemoryError"


def test_looking_at_a_lock_does_not_take_it(folder):
    lock = FileLock(folder / ".lock")
    lock.acquire()
    assert held(folder / ".lock")
    lock.release()
    assert not held(folder / ".lock")
    lock.acquire(timeout=0)
    assert not held(folder / "none")


# Claims


def test_a_claim_is_queued_until_released(folder):
    claim = Claim.take(folder, launcher="local")
    assert claim is not None
    assert state(folder) == State("queued", f"pid {os.getpid()} on {platform.node()}")
    assert Claim.take(folder, launcher="local") is None
    claim.release()
    assert state(folder).name == "missing"
    assert Claim.take(folder, launcher="local") is not None


CLAIMS = (
    "import sys; from pathlib import Path; from ablate.study.launch.claim import Claim\n"
    "taken = [Claim.take(Path(sys.argv[1], str(n)), launcher='local') for n in range(50)]\n"
    "print([n for n, claim in enumerate(taken) if claim], flush=True); input()"
)


def test_of_claims_at_once_each_is_given_once_and_those_of_the_dead_are_free(tmp_path):
    line = [sys.executable, "-c", CLAIMS, str(tmp_path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    takers = [subprocess.Popen(line, **pipes) for _ in range(3)]  # type: ignore[call-overload]
    took = [json.loads(taker.stdout.readline()) for taker in takers]
    assert sorted(number for numbers in took for number in numbers) == list(range(50))
    assert state(tmp_path / "0").name == "queued"
    assert Claim.take(tmp_path / "0", launcher="local") is None
    for taker in takers:
        taker.send_signal(signal.SIGKILL)
        taker.communicate()
    assert (tmp_path / "0" / "queued.json").exists()
    assert state(tmp_path / "0").name == "missing"
    assert Claim.take(tmp_path / "0", launcher="local") is not None


@pytest.mark.parametrize(
    ("more", "name"),
    [
        ({}, "queued"),
        ({"pid": DEAD}, "missing"),
        ({"pid": DEAD, "host": "elsewhere"}, "queued"),
    ],
)
def test_an_entry_without_a_claim_counts_while_its_process_may_live(folder, more, name):
    queue(folder, **more)
    assert state(folder).name == name


def test_a_process_of_another_user_lives(folder, monkeypatch):
    def forbidden(*_: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "kill", forbidden)
    queue(folder)
    assert state(folder).name == "queued"


@pytest.fixture
def squeue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A Slurm that has the jobs in a file; without the file it does not answer."""
    program, jobs = tmp_path / "bin" / "squeue", tmp_path / "jobs"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\ncat {jobs}\n")
    program.chmod(0o755)
    jobs.write_text("16 RUNNING (None)\n17 PENDING (Priority)\n18_3\n")
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    state_module._slurm_jobs.cache_clear()
    yield jobs
    state_module._slurm_jobs.cache_clear()


@pytest.mark.parametrize(
    ("job", "name", "detail"),
    [
        ("16", "queued", "job 16 (slurm), RUNNING"),
        ("17", "queued", "job 17 (slurm), PENDING (Priority)"),
        ("18_3", "queued", "job 18_3 (slurm)"),
        ("9", "failed", "loss is nan"),
    ],
)
def test_a_job_of_slurm_counts_while_squeue_knows_it(folder, squeue, job, name, detail):
    queue(folder, launcher="slurm", job=job, pid=DEAD)
    write(folder, status="failed", error="loss is nan")
    (folder / ".claim").touch()
    found = state(folder)
    assert (found.name, found.detail) == (name, detail)
    assert (Claim.take(folder, launcher="local") is None) == (name == "queued")


def test_a_run_whose_job_slurm_knows_no_more_has_failed(folder, squeue):
    """Unless it ended by itself, or the job is younger than squeue's answer may be."""
    queue(folder, launcher="slurm", job="9", pid=DEAD)
    assert state(folder) == State("failed", "job 9 (slurm) was cancelled or lost")
    write(folder, status="failed", error=f"stopped by SIGTERM after step 7; {RESUMES} from there")
    assert state(folder).name == "failed"
    assert "job 9 (slurm) was cancelled or lost; stopped by SIGTERM after" in state(folder).detail
    now = datetime.now(UTC).isoformat(timespec="seconds")
    queue(folder, launcher="slurm", job="9", pid=DEAD, time=now)
    assert state(folder).name == "queued"
    write(folder, status="finished")
    assert state(folder).name == "finished"


def test_a_queue_that_does_not_answer_is_believed(folder, squeue):
    squeue.unlink()
    queue(folder, launcher="slurm", job="17", pid=DEAD)
    assert state(folder).name == "queued"


# A study


def test_states_of_a_study_are_in_the_order_of_its_plan(tmp_path):
    arms = {"baseline": arm([1.5, 1.4, None]), "a=1": arm([1.3, "failed: nan", "running"])}
    study = make_study(tmp_path / "scores", arms)
    cells = json.loads((study / "plan.json").read_text())["cells"]
    found = states(study)
    assert list(found) == [cell["folder"] for cell in cells]
    names = ["finished", "finished", "missing", "finished", "failed", "failed"]
    assert [one.name for one in found.values()] == names
    (study / "plan.json").unlink()  # then the folders count
    (study / "something else").mkdir()
    assert len(states(study)) == 5


def test_looking_needs_no_torch():
    code = "import ablate.study.launch.live, sys; print({'torch', 'numpy'} & {*sys.modules})"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "set()\n"


@pytest.mark.parametrize("damage", ['{"status": "fin', '["finished"]', "7", "null", "\xff"])
def test_a_damaged_result_is_no_result(folder, damage):
    for name in ("result.json", "queued.json", "progress.json"):
        (folder / name).write_bytes(damage.encode("latin-1"))
    found = state(folder)
    assert state_alone(folder) == found
    assert found.name == "missing"
    assert "result.json cannot be read" in found.detail
    assert settle(folder, -signal.SIGKILL, Mark.of(folder)).name == "failed"
    (folder / "progress.json").write_bytes(damage.encode("latin-1"))
    write(folder, status="running")
    with FileLock(folder / ".lock"):
        assert state(folder) == State("running")
