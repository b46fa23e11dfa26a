"""How a run ended is written down by its launcher where the run itself could not."""

import json
import signal
from pathlib import Path

import pytest

from ablate.study.launch.ending import Mark, settle
from ablate.study.launch.state import RESUMES, State


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "baseline-0123456789ab"
    made.mkdir()
    return made


def write(folder: Path, **content: object) -> None:
    (folder / "result.json").write_text(json.dumps(content))


def ended(folder: Path, code: int, **more: str) -> State:
    return settle(folder, code, Mark.of(folder), **more)


def test_a_death_by_signal_keeps_what_was_known(folder: Path) -> None:
    write(folder, status="running", error=None, run_id="0123456789ab", kernels={"a": "sdpa"})
    (folder / "stdout.log").write_text("python -m ablate seed=0\nstep 3\n")
    found = ended(folder, -signal.SIGKILL)
    assert found.name == "failed"
    assert found.detail == "killed by SIGKILL (perhaps out of memory); last lines: step 3"
    assert found.result["kernels"] == {"a": "sdpa"}
    assert ended(folder, -signal.SIGSEGV).detail.startswith("killed by SIGSEGV; last")


def test_what_a_run_says_of_itself_stays(folder: Path) -> None:
    before = Mark.of(folder)
    write(folder, status="failed", error="loss is nan at step 6")
    assert settle(folder, 1, before).detail == "loss is nan at step 6"
    # But not what an earlier try said.
    assert "killed by SIGKILL" in ended(folder, -signal.SIGKILL).detail


def test_a_run_that_says_nothing(folder: Path) -> None:
    (folder / "stdout.log").write_text("python -m ablate seed=0\nTraceback\nImportError: no x\n")
    found = ended(folder, 1)
    assert found.name == "failed"
    assert found.detail == "ended with code 1; last lines: Traceback | ImportError: no x"
    assert found.result["run_id"] == "0123456789ab"


def test_an_end_without_an_error_is_no_success(folder: Path) -> None:
    """As after os._exit(0)."""
    found = ended(folder, 0)
    assert found.name == "failed"
    assert found.detail.startswith("its process ended without an error, but before the run was")


def test_a_refusal_says_why(folder: Path) -> None:
    text = "python -m ablate seed=0\nablate: data.path=x: there is no such file\n"
    (folder / "stdout.log").write_text(text)
    found = ended(folder, 2)
    assert (found.name, found.detail) == ("refused", "data.path=x: there is no such file")


def test_a_timeout_is_a_failure_and_a_stop_is_none(folder: Path) -> None:
    before = Mark.of(folder)
    write(folder, status="failed", error=f"stopped by SIGTERM after step 7; {RESUMES}")
    assert settle(folder, 130, before, reason=f"stopped; {RESUMES}").name == "missing"
    # What the run printed when it was stopped does not make a failure a stop.
    (folder / "stdout.log").write_text(f"python -m ablate\nablate: stopped by SIGTERM; {RESUMES}\n")
    found = settle(folder, 130, before, reason="hydra.launcher.timeout=5: not done in time")
    assert found.name == "failed"
    assert "timeout=5" in found.detail


def test_a_run_stopped_before_it_began_leaves_nothing(folder: Path) -> None:
    assert ended(folder, -signal.SIGTERM, reason=f"stopped; {RESUMES}").name == "missing"
    assert not (folder / "result.json").exists()


def test_a_finished_run_stays_finished(folder: Path) -> None:
    write(folder, status="finished", error=None)
    assert ended(folder, -signal.SIGSEGV).name == "finished"
