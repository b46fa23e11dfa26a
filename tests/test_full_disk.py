"""A full disk, one that becomes read-only: one line, and with room the same command resumes."""

import os
import subprocess
from contextlib import ExitStack, contextmanager

import pytest
from test_resume import assert_equal
from tiny import overrides

import ablate
from ablate.errors import RunFailed
from ablate.task.causal_lm import CausalLM


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


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """A folder with the text, and a run of it that had room."""
    folder = tmp_path_factory.mktemp("full")
    ablate.run(ablate.compose(*overrides(folder)), folder / "straight")
    return folder


@pytest.mark.parametrize("logger", ["none", pytest.param("tensorboard", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "size", ["120k", *(pytest.param(kb, marks=pytest.mark.slow) for kb in ("8k", "48k", "200k"))]
)
def test_a_full_disk(straight, tmp_path, size, logger):
    cfg = ablate.compose(*overrides(straight), f"logger={logger}")
    with disk(place := tmp_path / "run", size):
        with pytest.raises(RunFailed, match="No space left on device"):
            ablate.run(cfg, place)
        subprocess.run(["mount", "-o", "remount,size=64m", str(place)], check=True)
        ablate.run(cfg, place)
        assert_equal(place, straight / "straight")


def test_a_disk_that_becomes_read_only(straight, tmp_path, monkeypatch):
    cfg = ablate.compose(*overrides(straight))
    loss = CausalLM.loss

    def struck(task, batch):
        if task.global_step == 6 and task.training:
            # Over the folder, since the file of the lock, which is open, forbids to remount it.
            stack.enter_context(disk(tmp_path / "run", "64m,ro"))
        return loss(task, batch)

    with ExitStack() as stack, monkeypatch.context() as patch:
        patch.setattr(CausalLM, "loss", struck)
        with pytest.raises(RunFailed, match="Read-only file system; when it can be written"):
            ablate.run(cfg, tmp_path / "run")
    ablate.run(cfg, tmp_path / "run")
    assert_equal(tmp_path / "run", straight / "straight")
