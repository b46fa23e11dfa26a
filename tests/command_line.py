"""The command line inside the test's own process, with a stand-in for the training."""

import logging
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from hydra.core.hydra_config import HydraConfig
from hydra.core.singleton import Singleton
from hydra.types import RunMode
from omegaconf import DictConfig

from ablate.__main__ import main
from ablate.cli import job, summary
from ablate.config import tree
from ablate.config.composition import Composition, compose
from ablate.run_files import write_json
from ablate.study import sweeper

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def runs() -> list[tuple[DictConfig, Path]]:
    """What the training was called with."""
    return []


@pytest.fixture
def fail() -> list[BaseException]:
    """Put an error here and every training raises it."""
    return []


@pytest.fixture
def seen() -> dict[str, Any]:
    """What the training found around it; `measure` (cfg -> val/loss) is what it comes to."""
    return {}


@pytest.fixture
def ablate_command(
    runs: list[tuple[DictConfig, Path]],
    fail: list[BaseException],
    seen: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> Iterator[Command]:
    """`python -m ablate ARGV` in an empty folder: exit code, stdout, stderr."""

    def train(
        composition: Composition, run_dir: Path, began: float, shared: object = None
    ) -> dict[str, Any]:
        cfg = composition.cfg
        runs.append((cfg, run_dir))
        seen["ddp"] = lightnings_command()
        if "compose" in seen:
            seen["composed"] = compose(seen["compose"])
        if HydraConfig.get().mode == RunMode.MULTIRUN:
            write_json(run_dir / "result.json", {"run_id": composition.id, **ended(cfg)})
        if fail:
            raise fail[0]
        return {"metric": {"value": cfg.optimizer.lr}}

    def ended(cfg: DictConfig) -> dict[str, Any]:
        if fail:
            return {"status": "failed", "error": str(fail[0])}
        value = seen["measure"](cfg) if "measure" in seen else cfg.optimizer.lr
        cost = {"wall_seconds": 9.0, "train_seconds": 8.0, "flops_per_step": 5, "steps": 12}
        metrics = {"metrics": {"val/loss": value}}
        return {"status": "finished", "error": "", "arm": cfg.study.arm, **metrics, **cost}

    monkeypatch.setattr(import_module("ablate.training.train"), "train", train)
    monkeypatch.setattr(summary, "show_result", lambda result, run_dir, cfg: None)
    monkeypatch.setattr(sweeper, "report", lambda folder, printed=True: None)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])  # the command adds the current folder
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)

    def command(*argv: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["ablate", *argv])
        job.failures.clear()
        capfd.readouterr()
        with pytest.raises(SystemExit) as stop:
            main()
        return (stop.value.code, *capfd.readouterr())  # type: ignore[return-value]

    handlers, level = logging.root.handlers[:], logging.root.level
    singletons = Singleton.get_state()
    yield command
    # Hydra sets up logging and remembers its last run.
    logging.root.handlers[:], logging.root.level = handlers, level
    Singleton.set_state(singletons)
    tree._trees.clear()  # which know the singletons before


def lightnings_command() -> list[str]:
    """The arguments with which Lightning would start a second process here."""
    if not HydraConfig.initialized():
        return []
    from lightning.fabric.strategies.launchers import subprocess_script

    command, _ = subprocess_script._hydra_subprocess_cmd(local_rank=1)
    typed = sys.argv[1:]
    assert command[-3 - len(typed) : -3] == typed
    return list(command[-3 - len(typed) :])
