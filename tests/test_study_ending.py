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


@pytest.mark.parametrize(
    ("code", "last", "name", "detail"),
    [
        (-9, "step 3", "failed", "killed by SIGKILL (perhaps out of memory); last lines: step 3"),
        (-11, "step 3", "failed", "killed by SIGSEGV; last lines: step 3"),
        (1, "ImportError: no x", "failed", "ended with code 1; last lines: ImportError: no x"),
        # As after os._exit(0).
        (0, "step 3", "failed", "its process ended without an error, but before the run was"),
        (2, "ablate: data.path=x: no such file", "refused", "data.path=x: no such file"),
    ],
)
def test_a_run_that_says_nothing_of_its_end(folder, code, last, name, detail):
    write(folder, status="running", error=None, run_id="0123456789ab", kernels={"a": "sdpa"})
    (folder / "stdout.log").write_text(f"python -m ablate seed=0\n{last}\n")
    found = ended(folder, code)
    assert found.name == name
    assert found.detail.startswith(detail)
    assert found.result["kernels"] == {"a": "sdpa"}  # what was known stays
    (folder / "result.json").unlink()
    assert ended(folder, code).result["run_id"] == "0123456789ab"


def test_what_a_run_says_of_itself_stays(folder):
    before = Mark.of(folder)
    write(folder, status="failed", error="loss is nan at step 6")
    assert settle(folder, 1, before).detail == "loss is nan at step 6"
    # But not what an earlier try said.
    assert "killed by SIGKILL" in ended(folder, -signal.SIGKILL).detail
    write(folder, status="finished", error=None)
    assert ended(folder, -signal.SIGSEGV).name == "finished"


def test_a_timeout_is_a_failure_and_a_stop_is_none(folder):
    before = Mark.of(folder)
    write(folder, status="failed", error=f"stopped by SIGTERM after step 7; {RESUMES}")
    assert settle(folder, 130, before, reason=f"stopped; {RESUMES}").name == "missing"
    # What the run printed when it was stopped does not make a failure a stop.
    (folder / "stdout.log").write_text(f"python -m ablate\nablate: stopped by SIGTERM; {RESUMES}\n")
    found = settle(folder, 130, before, reason="hydra.launcher.timeout=5: not done in time")
    assert found.name == "failed"
    assert "timeout=5" in found.detail


def test_a_run_stopped_before_it_began_leaves_nothing(folder):
    assert ended(folder, -signal.SIGTERM, reason=f"stopped; {RESUMES}").name == "missing"
    assert not (folder / "result.json").exists()
