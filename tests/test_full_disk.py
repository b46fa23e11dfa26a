"""A full disk, one that becomes read-only: one line, and with room the same command resumes."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from tiny import overrides

import ablate
from ablate.errors import RunFailed
from ablate.task.causal_lm import CausalLM

COMPARED = ("status", "error", "metric", "metrics", "steps", "best_step", "kernels", "run_id")


@contextmanager
def disk(place: Path, size: str) -> Iterator[Path]:
    """A small file system in memory."""
    place.mkdir(exist_ok=True)
    line = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)]
    if os.geteuid() or subprocess.run(line, capture_output=True).returncode:
        pytest.skip("only root can mount a small disk, and not in every container")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def remount(place: Path, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", str(place)], check=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("full")


@pytest.fixture(scope="module")
def straight(folder: Path) -> dict[str, object]:
    """The result of the same command with room."""
    code, told = command(folder, folder / "outputs")
    assert code == 0, told
    return result(next(folder.glob("outputs/runs/*")))


def result(run: Path) -> dict[str, object]:
    found = json.loads((run / "result.json").read_text())
    return {key: found[key] for key in COMPARED}


def command(folder: Path, place: Path, *more: str) -> tuple[int, str]:
    line = [sys.executable, "-m", "ablate", *overrides(folder), f"output_dir={place}", *more]
    done = subprocess.run(line, capture_output=True, text=True, cwd=folder)
    return done.returncode, done.stdout + done.stderr


SIZES = ("8k", "48k", "120k", "200k")


@pytest.mark.parametrize("logger", ["none", pytest.param("tensorboard", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "size", [pytest.param(s, marks=[] if s == "120k" else pytest.mark.slow) for s in SIZES]
)
def test_a_full_disk(
    folder: Path, straight: dict[str, object], tmp_path: Path, size: str, logger: str
) -> None:
    with disk(tmp_path / "small", size) as place:
        code, told = command(folder, place, f"logger={logger}")
        assert code in (1, 2)
        said = [line for line in told.splitlines() if line.startswith("ablate: ")]
        assert "Traceback" not in told, told
        assert "No space left on device" in said[-1]
        remount(place, "size=64m")
        code, told = command(folder, place, f"logger={logger}")
        assert code == 0, told
        (run,) = place.glob("runs/*")
        assert result(run) == straight


def test_a_disk_that_becomes_read_only(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cfg = ablate.compose(*overrides(folder))
    ablate.run(cfg, tmp_path / "straight")
    loss = CausalLM.loss

    def struck(task: CausalLM, batch: object) -> object:
        if task.global_step == 6 and task.training:
            # Over the folder, since the file of the lock, which is open, forbids to remount it.
            stack.enter_context(disk(tmp_path / "run", "64m,ro"))
        return loss(task, batch)

    with ExitStack() as stack, monkeypatch.context() as patch:
        patch.setattr(CausalLM, "loss", struck)
        with pytest.raises(RunFailed, match="Read-only file system; when it can be written"):
            ablate.run(cfg, tmp_path / "run")
    ablate.run(cfg, tmp_path / "run")
    assert result(tmp_path / "run") == result(tmp_path / "straight")
