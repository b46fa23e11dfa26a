"""The state of a run is what its folder says; its launcher records an end that it could not."""

import json
import os
import platform
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest
from filelock import FileLock
from make_study import arm, make_study

from ablate.run_files import PLANNED
from ablate.study.launch import state as state_module
from ablate.study.launch.ending import mark, record_exit
from ablate.study.launch.locks import RunLock
from ablate.study.launch.state import RESUMES, State, held, state, state_alone, states

DEAD = 2**22 + 1  # above the largest pid of Linux
STOPPED = f"stopped by SIGTERM after step 7; {RESUMES} from there"


@pytest.fixture
def folder(tmp_path):
    (made := tmp_path / "baseline-0123456789ab").mkdir()
    return made


def write(folder, name="result.json", **content):
    (folder / name).write_text(json.dumps(content))


def queue(folder, **more):
    own = {"launcher": "local", "job": None, "host": platform.node(), "pid": os.getpid()}
    write(folder, "queued.json", **(own | {"time": "2026-11-20T16:00:00+00:00"} | more))


def test_an_end_is_what_the_result_says(folder):
    assert state(folder).name == state(folder / "nowhere").name == "missing"
    for status in ("finished", "failed", "rejected"):
        write(folder, status=status, error="loss is nan")
        assert state(folder) == State(status, "loss is nan")
        assert state(folder).ended
    write(folder, status="failed", error=STOPPED)
    assert state(folder).name == "missing"  # it was stopped on request
    assert "step 7" in state(folder).detail


def test_running_is_a_lock_that_is_held(folder):
    write(folder, status="running", error=None)
    write(folder, "progress.json", step=30, steps=400, rate=2.5, pid=17, host="desk")
    with FileLock(folder / ".lock") as lock:
        assert state(folder) == State("running", "pid 17 on desk", step=30, steps=400, rate=2.5)
    (folder / "stdout.log").write_text("python -m ablate seed=0\nstep 30\nMemoryError\n")
    died = state(folder)
    assert (died.name, died.step) == ("failed", 30)
    assert died.detail == "died: step 30 | MemoryError"
    lock.acquire(timeout=0)  # to look has not taken it
    assert not held(folder / "none")


# Claims


def take(folder):
    return RunLock.take(folder, launcher="local")


def test_a_run_that_was_not_started_leaves_no_folder_and_one_with_more_stays(tmp_path):
    for name, kept in [("planned", False), ("begun", True)]:
        if kept:
            (tmp_path / name).mkdir()
        lock = take(tmp_path / name)
        (tmp_path / name / PLANNED).write_text("{}")
        lock.abandon()
        assert (tmp_path / name / PLANNED).exists() == (tmp_path / name).exists() == kept


CLAIMS = """
import sys; from pathlib import Path; from ablate.study.launch.locks import RunLock
taken = [RunLock.take(Path(sys.argv[1], str(n)), launcher='local') for n in range(50)]
print([n for n, claim in enumerate(taken) if claim], flush=True); input()
"""


def test_of_claims_at_once_each_is_given_once_and_those_of_the_dead_are_free(tmp_path):
    line = [sys.executable, "-c", CLAIMS, str(tmp_path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    takers = [subprocess.Popen(line, **pipes) for _ in range(3)]
    took = [number for taker in takers for number in json.loads(taker.stdout.readline())]
    assert sorted(took) == list(range(50))
    first = tmp_path / "0"
    assert (state(first).name, take(first)) == ("queued", None)
    for taker in takers:
        taker.kill()
        taker.communicate()
    assert ((first / "queued.json").exists(), state(first).name) == (True, "missing")
    claim = take(first)
    assert state(first) == State("queued", f"pid {os.getpid()} on {platform.node()}")
    claim.release()
    assert state(first).name == "missing"


@pytest.fixture
def squeue(tmp_path, monkeypatch):
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


def test_a_job_of_slurm_counts_while_squeue_knows_it(folder, squeue):
    for job, detail in {
        "17": "job 17 (slurm), PENDING (Priority)",
        "18_3": "job 18_3 (slurm)",
        "9": "loss is nan",
    }.items():
        queue(folder, launcher="slurm", job=job, pid=DEAD)
        write(folder, status="failed", error="loss is nan")
        (folder / ".claim").touch()
        assert state(folder) == State("failed" if job == "9" else "queued", detail)
        assert (take(folder) is None) == (job != "9")


def test_a_run_whose_job_slurm_knows_no_more_has_failed(folder, squeue):
    """Unless it ended by itself, the job is younger than squeue's answer, or there is none."""
    lost, own = "job 9 (slurm) was cancelled or lost", {"launcher": "slurm", "job": "9"}
    queue(folder, **own, pid=DEAD)
    assert state(folder) == State("failed", lost)
    write(folder, status="failed", error=STOPPED)
    assert state(folder) == State("failed", f"{lost}; {STOPPED}")
    later = datetime.now(UTC) + timedelta(hours=1)  # the clock was set back
    queue(folder, **own, pid=DEAD, time=later.isoformat(timespec="seconds"))
    assert state(folder).name == "failed"
    queue(folder, **own, pid=DEAD, time=datetime.now(UTC).isoformat(timespec="seconds"))
    assert state(folder).name == "queued"
    write(folder, status="finished")
    assert state(folder).name == "finished"
    (folder / "result.json").unlink()
    queue(folder, **own, pid=DEAD)
    state_module._slurm_jobs.cache_clear()
    squeue.unlink()
    assert state(folder).name == "queued"


def test_states_of_a_study_are_in_the_order_of_its_plan(tmp_path):
    arms = {"baseline": arm([1.5, 1.4, None]), "a=1": arm([1.3, "failed: nan", "running"])}
    study = make_study(tmp_path / "scores", arms)
    cells = json.loads((study / "plan.json").read_text())["cells"]
    names = ["finished", "finished", "missing", "finished", "failed", "failed"]
    found = [(folder, one.name) for folder, one in states(study).items()]
    assert found == [*zip((cell["folder"] for cell in cells), names, strict=True)]


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
    assert ended(folder, -signal.SIGKILL).name == "failed"
    (folder / "progress.json").write_bytes(damage.encode("latin-1"))
    write(folder, status="running")
    with FileLock(folder / ".lock"):
        assert state(folder) == State("running")


# Ends that the launcher writes down


def ended(folder, code, **more):
    return record_exit(folder, code, mark(folder), **more)


@pytest.mark.parametrize(
    ("code", "last", "name", "detail"),
    [
        (-9, "step 3", "failed", "killed by SIGKILL (perhaps out of memory); last lines: step 3"),
        (-11, "step 3", "failed", "killed by SIGSEGV; last lines: step 3"),
        (1, "ImportError: no x", "failed", "ended with code 1; last lines: ImportError: no x"),
        # As after os._exit(0).
        (0, "step 3", "failed", "its process ended without an error, but before the run was"),
        (2, "ablate: data.path=x: no such file", "rejected", "data.path=x: no such file"),
    ],
)
def test_a_run_that_says_nothing_of_its_end(folder, code, last, name, detail):
    write(folder, status="running", error=None, run_id="0123456789ab", kernels={"a": "sdpa"})
    (folder / "stdout.log").write_text(f"python -m ablate seed=0\n{last}\n")
    found = ended(folder, code)
    assert (found.name, found.detail[: len(detail)]) == (name, detail)
    assert found.result["kernels"] == {"a": "sdpa"}  # what was known stays
    (folder / "result.json").unlink()
    assert ended(folder, code).result["run_id"] == "0123456789ab"


def test_what_a_run_says_of_itself_stays(folder):
    before = mark(folder)
    write(folder, status="failed", error="loss is nan at step 6")
    assert record_exit(folder, 1, before).detail == "loss is nan at step 6"
    # But not what an earlier try said.
    assert "killed by SIGKILL" in ended(folder, -signal.SIGKILL).detail
    write(folder, status="finished", error=None)
    assert ended(folder, -signal.SIGSEGV).name == "finished"


def test_the_result_of_a_run_that_another_process_trains_stays(folder):
    write(folder, status="running", error=None)
    with FileLock(folder / ".lock"):
        assert ended(folder, 2).name == "running"


def test_a_timeout_is_a_failure_and_a_stop_is_none(folder):
    """Not even if the run printed that it was stopped; before it begins, a stop leaves nothing."""
    stopped = f"stopped; {RESUMES}"
    assert ended(folder, -signal.SIGTERM, reason=stopped).name == "missing"
    assert not (folder / "result.json").exists()
    before = mark(folder)
    write(folder, status="failed", error=STOPPED)
    assert record_exit(folder, 130, before, reason=stopped).name == "missing"
    (folder / "stdout.log").write_text(f"python -m ablate\nablate: stopped by SIGTERM; {RESUMES}\n")
    found = record_exit(folder, 130, before, reason="hydra.launcher.timeout=5: not done in time")
    assert found.name == "failed"
    assert "timeout=5" in found.detail
