"""What a command imports before it trains, and that torchmetrics is whole for whoever asks."""

import subprocess
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path

import pytest

from ablate import _lazy_torchmetrics
from ablate._lazy_torchmetrics import Finder

# Trains until the first step is done, then says which of these were imported.
UNTIL_THE_FIRST_STEP = """
import sys
import ablate.__main__ as command
from ablate.training.progress import ProgressFile

class Enough(BaseException): pass

def enough(*args, **kwargs): raise Enough

ProgressFile.on_train_batch_end = enough
for more in (["model.depth=1"], ["model=vit"]):
    sys.argv[1:] = ["trainer.max_steps=1", "schedule.warmup=0", "logger=none", *more]
    try: command.main()
    except Enough: pass
    else: raise AssertionError(more)
    heavy = {"transformers", "torchvision", "timm", "sklearn", "scipy", "wandb", "tensorboard",
             "tokenizers", "sacrebleu", "babel", "gensim", "ablate.study.report"}
    print(sorted(heavy & set(sys.modules)))
"""


def in_a_process(script: str, folder: Path) -> list[str]:
    environment = {"PYTHONPATH": ":".join(sys.path), "PATH": "", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-c", script]
    run = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return run.stdout.splitlines()


@pytest.mark.slow
def test_before_the_first_step_nothing_is_imported_that_it_does_without(tmp_path: Path) -> None:
    said = in_a_process(UNTIL_THE_FIRST_STEP, tmp_path)
    assert [line for line in said if " parameters | " not in line] == ["[]", "[]"]


@pytest.mark.slow
def test_torchmetrics_is_whole_for_whoever_asks(tmp_path: Path) -> None:
    script = """
import sys, ablate, lightning.pytorch
import torchmetrics
from torchmetrics import Metric
print("torchmetrics.image" in sys.modules)
from torchmetrics import *
import torchmetrics.text, torchmetrics.functional
print([name for name in torchmetrics.__all__ if not hasattr(torchmetrics, name)])
print(Metric is torchmetrics.metric.Metric, issubclass(BLEUScore, Metric))
print(torchmetrics.functional.accuracy.__module__)
"""
    assert in_a_process(script, tmp_path) == [
        "False",
        "[]",
        "True True",
        "torchmetrics.functional.classification.accuracy",
    ]


def test_another_version_is_imported_as_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = Finder().find_spec("torchmetrics", None)
    assert spec is not None
    assert not isinstance(spec.loader, SourceFileLoader)
    monkeypatch.setattr(_lazy_torchmetrics, "version", lambda name: "1.10.0")
    spec = Finder().find_spec("torchmetrics", None)
    assert spec is not None
    assert isinstance(spec.loader, SourceFileLoader)
    assert Finder().find_spec("torch", None) is None
