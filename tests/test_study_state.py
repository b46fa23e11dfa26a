"""The state of a run is what its folder says, whoever looks and from wherever."""

import json
import os
import platform
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
from filelock import FileLock
from make_study import arm, make_study
from rich.console import Console

from ablate.study.launch import state as state_module
from ablate.study.launch.claim import Claim
from ablate.study.launch.ending import Mark, settle
from ablate.study.launch.live import status_table, time_left
from ablate.study.launch.state import RESUMES, State, held, last_lines, state, state_alone, states

DEAD = 2**22 + 1  # above the largest pid of Linux


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "baseline-0123456789ab"
    made.mkdir()
    return made


def write(folder: Path, name: str = "result.json", **content: object) -> None:
    (folder / name).write_text(json.dumps(content))


def entry(**more: object) -> dict[str, object]:
    own = {"launcher": "local", "job": None, "host": platform.node(), "pid": os.getpid()}
    return own | {"time": "2026-11-20T16:00:00+00:00"} | more


def test_nothing_there_is_missing(folder: Path) -> None:
    assert state(folder).name == state(folder / "nowhere").name == "missing"


@pytest.mark.parametrize("status", ["finished", "failed", "refused"])
def test_an_end_is_what_the_result_says(folder: Path, status: str) -> None:
    write(folder, status=status, error="loss is nan")
    assert (state(folder).name, state(folder).detail) == (status, "loss is nan")
    assert state(folder).ended


def test_a_run_that_was_stopped_on_request_is_not_over(folder: Path) -> None:
    write(folder, status="failed", error=f"stopped by SIGTERM after step 7; {RESUMES} from there")
    assert state(folder).name == "missing"
    assert "step 7" in state(folder).detail


def test_running_is_a_lock_that_is_held(folder: Path) -> None:
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


def test_looking_at_a_lock_does_not_take_it(folder: Path) -> None:
    lock = FileLock(folder / ".lock")
    lock.acquire()
    assert held(folder / ".lock")
    lock.release()
    assert not held(folder / ".lock")
    lock.acquire(timeout=0)
    assert not held(folder / "none")


def test_the_last_lines_are_those_of_the_last_try(folder: Path) -> None:
    assert last_lines(folder) == "it printed nothing"
    tries = ["python -m ablate seed=0", "old", "python -m ablate seed=0", "a", "", "  b"]
    (folder / "stdout.log").write_text("\n".join(tries))
    assert last_lines(folder) == "a | b"
    (folder / "stdout.log").write_text("x" * 50_000 + "\nlast\n")
    assert last_lines(folder) == "last"
    (folder / "stdout.log").write_text("\n".join(["y" * 300, "z" * 300, "x" * 190]))
    assert last_lines(folder) == f"{'z' * 300} | {'x' * 190}"
    (folder / "stdout.log").write_text("x" * 50_000)
    assert last_lines(folder) == "x" * 500


# Claims


def test_a_claim_is_queued_until_released(folder: Path) -> None:
    claim = Claim.take(folder, launcher="local")
    assert claim is not None
    assert state(folder) == State("queued", f"pid {os.getpid()} on {platform.node()}")
    assert Claim.take(folder, launcher="local") is None
    claim.release()
    assert state(folder).name == "missing"
    assert Claim.take(folder, launcher="local") is not None


def test_a_claim_of_a_dead_launcher_is_free(folder: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from ablate.study.launch.claim import Claim\n"
        "claim = Claim.take(Path(sys.argv[1]), launcher='local'); print('taken', flush=True)\n"
        "time.sleep(60)"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", code, str(folder)], stdout=subprocess.PIPE, text=True
    )
    assert other.stdout is not None
    assert other.stdout.readline() == "taken\n"
    assert state(folder).name == "queued"
    assert Claim.take(folder, launcher="local") is None
    other.send_signal(signal.SIGKILL)
    other.wait()
    assert (folder / "queued.json").exists()
    assert state(folder).name == "missing"
    assert Claim.take(folder, launcher="local") is not None


def test_of_two_claims_at_once_one_is_given(tmp_path: Path) -> None:
    """Processes that all try to take the same runs take each exactly once."""
    code = (
        "import sys; from pathlib import Path; from ablate.study.launch.claim import Claim\n"
        "taken = [Claim.take(Path(sys.argv[1], str(n)), launcher='local') for n in range(50)]\n"
        "print([n for n, claim in enumerate(taken) if claim], flush=True); input()"
    )
    line = [sys.executable, "-c", code, str(tmp_path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    takers = [subprocess.Popen(line, **pipes) for _ in range(3)]  # type: ignore[call-overload]
    took = [json.loads(taker.stdout.readline()) for taker in takers]
    for taker in takers:
        taker.communicate("\n")
    assert sorted(number for numbers in took for number in numbers) == list(range(50))


@pytest.mark.parametrize(
    ("more", "name"),
    [({}, "queued"), ({"pid": DEAD}, "missing"), ({"pid": DEAD, "host": "elsewhere"}, "queued")],
)
def test_an_entry_without_a_claim_counts_while_its_process_may_live(
    folder: Path, more: dict[str, object], name: str
) -> None:
    write(folder, "queued.json", **entry(**more))
    assert state(folder).name == name


@pytest.fixture
def squeue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Slurm that has the jobs in a file."""
    program, jobs = tmp_path / "bin" / "squeue", tmp_path / "jobs"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\ncat {jobs}\n")
    program.chmod(0o755)
    jobs.write_text("17\n18_3\n")
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    state_module._slurm_jobs.cache_clear()
    yield jobs
    state_module._slurm_jobs.cache_clear()


@pytest.mark.parametrize(("job", "name"), [("17", "queued"), ("18_3", "queued"), ("9", "missing")])
def test_a_job_of_slurm_counts_while_squeue_knows_it(
    folder: Path, squeue: Path, job: str, name: str
) -> None:
    write(folder, "queued.json", **entry(launcher="slurm", job=job, pid=DEAD))
    write(folder, status="failed", error="loss is nan")
    (folder / ".claim").touch()
    assert state(folder).name == ("failed" if name == "missing" else name)
    assert (Claim.take(folder, launcher="local") is None) == (name == "queued")


def test_a_run_whose_job_slurm_knows_no_more_has_failed(folder: Path, squeue: Path) -> None:
    """Unless it ended by itself, or the job is younger than squeue's answer may be."""
    gone = entry(launcher="slurm", job="9", pid=DEAD)
    write(folder, "queued.json", **gone)
    assert state(folder) == State("failed", "job 9 (slurm) was cancelled or lost")
    write(folder, status="failed", error=f"stopped by SIGTERM after step 7; {RESUMES} from there")
    assert state(folder).name == "failed"
    assert "job 9 (slurm) was cancelled or lost; stopped by SIGTERM after" in state(folder).detail
    now = datetime.now(UTC).isoformat(timespec="seconds")
    write(folder, "queued.json", **{**gone, "time": now})
    assert state(folder).name == "queued"
    write(folder, status="finished")
    assert state(folder).name == "finished"


def test_slurm_says_why_a_job_waits(folder: Path, squeue: Path) -> None:
    squeue.write_text("16 RUNNING (None)\n17 PENDING (Priority)\n")
    for job, said in (("17", "PENDING (Priority)"), ("16", "RUNNING")):
        write(folder, "queued.json", **entry(launcher="slurm", job=job))
        assert state(folder) == State("queued", f"job {job} (slurm), {said}")


def test_a_queue_that_does_not_answer_is_believed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    state_module._slurm_jobs.cache_clear()
    write(folder, "queued.json", **entry(launcher="slurm", job="17", pid=DEAD))
    assert state(folder).name == "queued"
    state_module._slurm_jobs.cache_clear()


# A study


@pytest.fixture
def study(tmp_path: Path) -> Path:
    arms = {
        "baseline": arm([1.5, 1.4, None]),
        "model.attention=dot": arm([1.3, "failed: loss is nan at step 40", "running"]),
    }
    return make_study(tmp_path / "scores", arms)


def test_states_of_a_study_are_in_the_order_of_its_plan(study: Path) -> None:
    cells = json.loads((study / "plan.json").read_text())["cells"]
    found = states(study)
    assert list(found) == [cell["folder"] for cell in cells]
    names = ["finished", "finished", "missing", "finished", "failed", "failed"]
    assert [one.name for one in found.values()] == names


def test_without_a_plan_the_folders_count(study: Path) -> None:
    (study / "plan.json").unlink()
    (study / "something else").mkdir()
    assert len(states(study)) == 5


def test_the_status_of_a_study(study: Path) -> None:
    console = Console(width=200)
    with console.capture() as printed:
        console.print(status_table(study))
    text = printed.get()
    assert "3 finished, 1 to do, 2 failed; best val/loss 1.3 (model.attention=dot, seed 0)" in text
    assert "loss is nan at step 40" in text
    assert "died: it printed nothing" in text


def test_the_time_left() -> None:
    done = State("finished", result={"wall_seconds": 60.0})
    half = State("running", step=50, steps=100, rate=2.0)
    to_do = State("queued")

    def told(*runs: State, slots: int = 1) -> str | None:
        return time_left({f"dot-{number}": one for number, one in enumerate(runs)}, slots)

    assert told(to_do) is None
    assert told(done) is None
    assert told(done, to_do, to_do, to_do) == "3 min 00 s"
    assert told(done, to_do, to_do, slots=2) == "60 s"
    assert told(done, half) == "25 s"
    assert told(half, to_do) == "75 s"  # a whole run takes 50 s, as it looks


def test_the_time_left_goes_by_the_arm() -> None:
    quick, long = (State("finished", result={"wall_seconds": s}) for s in (60.0, 3600.0))
    to_do = State("queued")
    found = {"a-1": quick, "a-2": quick, "model.mask=none-1": long, "model.mask=none-2": to_do}
    assert time_left(found, 1) == "1 h 00 min"
    assert time_left(found | {"a-3": to_do}, 2) == "1 h 00 min"
    assert (
        time_left({"a-1": quick, "a-2": to_do, "a-b-3": to_do}, 1) == "2 min 00 s"
    )  # a-b: as the rest


def test_looking_needs_no_torch() -> None:
    code = (
        "import ablate.study.launch.live, sys;"
        " print([m for m in ('torch', 'numpy') if m in sys.modules])"
    )
    began = time.monotonic()
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n", time.monotonic() - began


@pytest.mark.parametrize("damage", ['{"status": "fin', '["finished"]', "7", "null", "\xff"])
def test_a_damaged_result_is_no_result(folder: Path, damage: str) -> None:
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
