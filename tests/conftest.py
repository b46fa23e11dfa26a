"""Fixtures for every test: real data beside the checkout, and no way to the network."""

import atexit
import gc
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

# Tiny tensors gain nothing from threads, and processes started by tests must add up as this one.
# torch reads it when it is imported; a process that is forked from one with threads blocks.
os.environ["OMP_NUM_THREADS"] = "1"
import torch
from hypothesis import settings
from shapes import install

install()
gc.disable()  # until all tests are collected: what is imported stays
# A busy machine breaks any time limit for one example.
settings.register_profile("ablate", deadline=None)
settings.load_profile("ablate")

SHARED_DATA = Path(
    os.environ.get("ABLATE_SHARED_DATA", Path(__file__).parents[2] / "shared" / "data")
)

# No test reads or leaves what is kept of texts and downloads.
if "ABLATE_CACHE" not in os.environ:
    os.environ["ABLATE_CACHE"] = tempfile.mkdtemp(prefix="ablate-cache-")
    os.environ["HF_DATASETS_CACHE"] = os.environ["ABLATE_CACHE"] + "/datasets"
    atexit.register(shutil.rmtree, os.environ["ABLATE_CACHE"], ignore_errors=True)

# A shell ignores Ctrl-C for programs in its background, and those they start; tests send it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Tests never talk to Weights & Biases; runs are written offline and read back from disk.
os.environ["WANDB_MODE"] = "offline"
os.environ["WANDB_SILENT"] = "true"
# Without a GPU Triton's interpreter runs kernel=triton; triton reads this when it is imported.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"


# Where our code meets other packages: CI runs these with the lowest versions, on macOS, too.
SMOKE = {
    "test_cli", "test_compiled", "test_data_lightning", "test_embedding", "test_figures",
    "test_hugging_face", "test_logger", "test_optuna", "test_pos_enc", "test_precision",
    "test_publish", "test_report_files", "test_timm", "test_train", "test_triton",
}  # fmt: skip

# Whose slow tests CI runs: how it is installed and started, what no GPU here would show, two
# processes, every option and conflict. The marker ci names single tests of other files.
CI = {
    "test_add_a_component", "test_cli", "test_compose", "test_conflicts", "test_ddp", "test_gpu",
    "test_package", "test_say",
}  # fmt: skip

# What a GPU computes as a CPU does.
GPU = {"test_gpu", "test_triton"}

# `pytest -m model` runs what belongs to src/ablate/model/, and so on: the names of test files.
AREAS = {
    "config": """add_a_component compose config_tree conflicts fuzz
        override_errors run_id schema""",
    "model": """activation_checkpoints around_scores attention axes bert
        block draws embedding flops formulas gpt
        hugging_face init knobs layers local_attention loop mask mixer moe mup
        ngpt normalizer one_position pairs pos_enc precision
        pretrained properties recurrent resnet rnn_* shapes timm transformer vit""",
    "kernel": "chunked compiled documents gpu kernel triton",
    "data": "data_* image_file knobs_data prepare",
    "task": """masked_lm predictions sample search
        task task_outside task_seq2seq""",
    "training": """callbacks accumulation average cache_bytes conditions ddp debug knobs_training
        links logger optimizer processes resume damaged_folders no_effect security shards
        sizes train transfer""",
    "study": "judge multirun optuna publish report report_* slurm_nodes study_*",
    "cli": "cli commands export figures generate imports lm_eval mutations package say wheel words",
    "systems": "systems",
}


# A system can be removed: its folder alone.
SYSTEMS = Path(__file__).parents[1] / "src/ablate/systems"
collect_ignore = [
    str(folder)
    for folder in Path(__file__).parent.glob("systems/*/")
    if not (SYSTEMS / folder.name).is_dir()
]


@cache
def areas(path: Path) -> list[str]:
    if path.parents[1].name == "systems":
        return ["systems"]
    name = path.stem.removeprefix("test_")
    return [a for a, names in AREAS.items() if any(fnmatchcase(name, n) for n in names.split())]


def pytest_configure(config: pytest.Config) -> None:
    for area in AREAS:
        config.addinivalue_line("markers", f"{area}: see CONTRIBUTING.md")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.stem in SMOKE:
            item.add_marker(pytest.mark.smoke)
        if item.path.stem in GPU:
            item.add_marker(pytest.mark.gpu)
        own = [mark.name for mark in item.own_markers if mark.name in ("ci", "slow")]
        if own and own[-1] == "slow":  # a slow example of a function that CI runs
            item.own_markers = [mark for mark in item.own_markers if mark.name != "ci"]
        if item.get_closest_marker("ci"):
            item.add_marker(pytest.mark.slow)
        elif item.path.stem in CI and item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.ci)
        for area in areas(item.path):
            item.add_marker(area)


@pytest.fixture(scope="module")
def small_files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[pytest.MonkeyPatch]:
    """Every data set in the working folder; what else the tests of the module have replaced."""
    import make_files

    with pytest.MonkeyPatch.context() as patch:
        make_files.write(tmp_path_factory.mktemp("data"), patch)
        yield patch


@pytest.fixture
def no_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a person's machine is."""
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """kernel=auto compiles where it can; test_chunked.py and test_compiled.py do that."""
    monkeypatch.setattr("ablate.kernel.chunked.compiler", lambda device: False)


def pytest_collection_finish() -> None:
    """Looking for garbage in what was imported was a fifth of the tests' time."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)  # seldom: a twentieth of the tests' time
    gc.enable()
    atexit.register(gc.unfreeze)  # else modules bound by nanobind report leaks at the end


@pytest.fixture
def shared_data() -> Path:
    """The folder of real data sets, which is not part of the project."""
    if not SHARED_DATA.is_dir():
        pytest.skip(f"real data is not on this machine: {SHARED_DATA}")
    return SHARED_DATA


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """What a command prints, called with these arguments."""
    from ways import called

    def of(command: ModuleType, *arguments: object) -> str:
        capsys.readouterr()
        called(command.main, *arguments)
        return capsys.readouterr().out

    return of


def undraw(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("ablate.training.train.show", lambda *_: None)


@pytest.fixture(autouse=True, scope="module")
def _whole_runs_where_they_are_tested(request: pytest.FixtureRequest) -> Iterator[None]:
    """Runs of this process end without figures and a sample, which are two thirds of a tiny run,
    but in a module with `WITH_FIGURES = True`; and begin without what makes the model again to
    count or compare it, a third of the rest, but there and with `WITH_COUNTS = True`."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("exit", "excepthook"):  # W&B replaces both, and leaves its own there
            patch.setattr(sys, name, getattr(sys, name))
        if not (whole := getattr(request.module, "WITH_FIGURES", False)):
            undraw(patch)
        if not (whole or getattr(request.module, "WITH_COUNTS", False)):
            for name in ("model_on_meta", "require_memory", "refuse_without_effect", "count_cache"):
                patch.setattr(f"ablate.training.train.{name}", lambda *_: None)
            patch.setattr("ablate.training.train.count_flops", lambda *_: 1)
        yield


@pytest.fixture
def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """For one test of a module with `WITH_FIGURES = True`."""
    undraw(monkeypatch)
