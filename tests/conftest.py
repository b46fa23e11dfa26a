"""Fixtures for every test: real data beside the checkout, and no way to the network."""

import atexit
import gc
import os
from pathlib import Path

import pytest
import torch

SHARED_DATA = Path(
    os.environ.get("ABLATE_SHARED_DATA", Path(__file__).parents[2] / "shared" / "data")
)

# Tiny tensors gain nothing from threads, and processes started by tests must add up as this one.
os.environ["OMP_NUM_THREADS"] = "1"
# Tests never talk to Weights & Biases; runs are written offline and read back from disk.
os.environ["WANDB_MODE"] = "offline"
os.environ["WANDB_SILENT"] = "true"
# Without a GPU Triton's interpreter runs kernel=triton; triton reads this when it is imported.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"


# Where our code meets other packages: CI runs these with the lowest versions, on macOS, too.
SMOKE = {
    "test_cli", "test_data_lightning", "test_embedding", "test_figures", "test_hugging_face",
    "test_logger", "test_optuna", "test_pos_enc", "test_precision", "test_publish",
    "test_report_files", "test_timm", "test_train", "test_triton", "test_wandb_server",
}  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.stem in SMOKE:
            item.add_marker(pytest.mark.smoke)


@pytest.fixture
def no_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a person's machine is."""
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)


def pytest_collection_finish() -> None:
    """What was imported stays: looking for garbage in it was a fifth of the tests' time."""
    gc.freeze()
    atexit.register(gc.unfreeze)  # else modules bound by nanobind report leaks at the end


@pytest.fixture
def shared_data() -> Path:
    """The folder of real data sets, which is not part of the project."""
    if not SHARED_DATA.is_dir():
        pytest.skip(f"real data is not on this machine: {SHARED_DATA}")
    return SHARED_DATA


@pytest.fixture
def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of this process end without figures and a sample, which are two thirds of a tiny run."""
    monkeypatch.setattr("ablate.training.train.show", lambda task, run_dir, trainer: None)
