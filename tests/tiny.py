"""A run that takes a second: the smallest of everything, on a text made here."""

import csv
import os
import random
import sys
from pathlib import Path
from subprocess import DEVNULL, CompletedProcess, run
from typing import Any

from omegaconf import DictConfig

import ablate
from ablate.training.build import build, build_data, make_task

WORDS = ["the", "cat", "sat", "on", "a", "mat", "and", "saw", "that", "all", "was", "well"]


def write_text(path: Path, words: int = 600) -> Path:
    """A text with something to learn and little to read."""
    rng = random.Random(0)
    path.write_text(" ".join(rng.choice(WORDS) for _ in range(words)))
    return path


def overrides(folder: Path, *more: str) -> list[str]:
    """A tiny GPT on that text, 12 steps with a validation at every fourth."""
    text = folder / "tiny.txt"
    if not text.exists():
        write_text(text)
    return [
        *("data=text", f"data.path={text}", "data.seq_len=16", "data.batch_size=4"),
        *("model.dim=16", "model.depth=1", "model.heads=2", "model.dropout=0.1"),
        *("trainer.max_steps=12", "trainer.val_check_interval=4", "trainer.log_every_n_steps=1"),
        *("schedule.warmup=2", "logger=none", f"output_dir={folder / 'outputs'}", *more),
    ]


SMALL = ("trainer.max_steps=4", "trainer.val_check_interval=2", "checkpoint_every=2")


def four_steps(folder: Path) -> list[str]:
    steps = "trainer.max_steps=4 trainer.val_check_interval=2 schedule.warmup=1 logger=none"
    return [*steps.split(), f"output_dir={folder / 'outputs'}"]


COUNTS = "data.train_examples=40 data.val_examples=14 data.test_examples=11 data.batch_size=4"
DIGITS = (
    f"data.height=12 data.width=24 data.min_digits=1 data.max_digits=3 {COUNTS} model.dim=8"
).split()
PAIRS = (
    "data=copy data.symbols=5 data.min_length=2 data.max_train_length=4 data.test_max_length=5"
    f" {COUNTS}"
).split()


def images(folder: Path, *more: str) -> list[str]:
    """A tiny ViT on the digits."""
    model = "model=vit model.patch=4 model.dim=16 model.depth=1 model.heads=2"
    steps = "trainer.max_epochs=null trainer.check_val_every_n_epoch=null"
    return [*model.split(), *steps.split(), *four_steps(folder), *more]


def pairs(folder: Path, *more: str) -> list[str]:
    """A tiny RNN with attention that copies numbers."""
    return ["model=rnn_seq2seq", *PAIRS, "model.dim=8", *four_steps(folder), *more]


def task_of(cfg: DictConfig) -> Any:
    """The task of a composition, with its data and its model; untrained."""
    data = build_data(cfg)
    return make_task(cfg, data, build(cfg, data))


def built(*typed: str) -> Any:
    return task_of(ablate.compose(*typed))


def trained(*typed: str) -> Path:
    """The folder of a finished run."""
    return Path(ablate.run(ablate.compose(*typed))["folder"])


def rows_of(folder: Path) -> list[dict[str, str]]:
    """Of metrics.csv."""
    with (folder / "metrics.csv").open() as file:
        return list(csv.DictReader(file))


def in_a_process(
    *argv: object, folder: Path | None = None, limit: int = 300, **env: str
) -> CompletedProcess[str]:
    """`python ARGV` in that folder, with the package that is tested. limit: seconds."""
    source = str(Path(ablate.__file__).parents[1])
    pipes: Any = {"stdin": DEVNULL, "capture_output": True, "text": True}
    line, environment = [sys.executable, *map(str, argv)], os.environ | {"PYTHONPATH": source} | env
    return run(line, cwd=folder, env=environment, timeout=limit, **pipes)
