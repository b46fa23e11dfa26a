"""Every knob of a data set changes its batches, and the number of workers changes none.

The keys come from the YAML files, so that a new one without an entry here fails.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import make_files
import pytest
import torch
from make_data import make
from make_files import FILES
from make_model import CONF, options
from omegaconf import OmegaConf
from test_knobs_pairs import GIVEN
from torch import Tensor

from ablate.config.facts import (
    CAPTIONS,
    GRAPH,
    IMAGES,
    LABELLED,
    PREFERENCES,
    RECALL,
    SERIES,
    TEXT,
    Facts,
)
from ablate.errors import UserError

# Another value of every key that changes what is read or how it is cut, by the kind of data.
LANGUAGE: dict[str, Any] = {
    "path": "other.txt",
    "tokenizer": "byte",
    "vocab_size": 300,
    "seq_len": 16,
    "batch_size": 3,
    "val_fraction": 0.02,
}
IMAGE_KEYS: dict[str, Any] = {
    "batch_size": 4,
    "flip": "the other",
    "randaugment": "rand-m9-mstd0.5",
    "size": 20,
}
NUMBERS: dict[str, Any] = {
    "path": "other.csv",
    "columns": ["b"],
    "window": 7,
    "horizon": 3,
    "val_fraction": 0.3,
    "test_fraction": 0.3,
    "batch_size": 3,
}
PAIRS: dict[str, Any] = {
    "vocab_size": 16,
    "seq_len": 16,
    "pairs": [1],
    "train_examples": 16,
    "val_examples": 6,
    "test_examples": 6,
    "batch_size": 4,
    "data_seed": 1,
}
NODES: dict[str, Any] = {"name": "citeseer", "normalise": False}
DOCUMENTS: dict[str, Any] = {
    "tokenizer": "byte",
    "vocab_size": 300,
    "seq_len": 6,
    "batch_size": 3,
}
DIGITS: dict[str, Any] = {
    "height": 9,
    "width": 30,
    "min_digits": 2,
    "max_digits": 3,
    "train_examples": 12,
    "val_examples": 6,
    "test_examples": 6,
    "batch_size": 2,
    "data_seed": 1,
}
CHOICES: dict[str, Any] = {
    "path": "preferences.jsonl",
    "rule": "letters",
    "temperature": 100.0,
    "tokenizer": "byte",
    "vocab_size": 300,
    "seq_len": 12,
    "prompt": 5,
    "train_examples": 16,
    "val_examples": 6,
    "test_examples": 6,
    "batch_size": 3,
}
MASKS: dict[str, Any] = {
    "size": 24,
    "scale": 2,
    "min_digits": 1,
    "max_digits": 3,
    "dimmest": 1.0,
    "unfamiliar": [7],
    "min_pixels": 12,
    "train_examples": 12,
    "val_examples": 6,
    "test_examples": 6,
    "batch_size": 2,
    "data_seed": 1,
}
VALUES = {
    "images with masks": MASKS,
    CAPTIONS: DIGITS,
    TEXT: LANGUAGE,
    LABELLED: DOCUMENTS,
    PREFERENCES: CHOICES,
    GRAPH: NODES,
    IMAGES: IMAGE_KEYS,
    RECALL: PAIRS,
    SERIES: NUMBERS,
}
# Keys that change no batch: where the same content lies, its checksum, the speed of reading, what
# the seasonal naive forecast repeats (test_forecasting.py), what is behind transparent pixels
# (test_image_file.py), which run writes the pairs (test_rlhf.py), and
# which encodes the images (test_autoencoder.py).
SILENT = {"root", "sha256", "workers", "period", "background", "writer", "autoencoder"}
# What has to be set so that a key has an effect.
NEEDS: dict[str, dict[str, Any]] = {"vocab_size": {"tokenizer": "bpe"}, "randaugment": {"size": 16}}


def node(name: str) -> Any:
    return OmegaConf.load(CONF / "data" / f"{name}.yaml")


def keys(name: str) -> set[str]:
    return {str(key) for key in list(node(name)) if not str(key).startswith("_")}


def kind(name: str) -> str:
    return Facts(OmegaConf.create({"data": node(name)})).kind


NAMES = [name for name in options("data") if kind(name) in VALUES]
CASES = [(name, key) for name in NAMES for key in sorted(keys(name) - SILENT)]


@pytest.fixture(autouse=True, scope="module")
def _files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        make_files.write(tmp_path_factory.mktemp("data"), patch)
        Path("other.txt").write_text(Path("text.txt").read_text()[::-1])
        first, *rows = Path("series.csv").read_text().splitlines()
        Path("other.csv").write_text("\n".join([first, *reversed(rows)]))
        yield


def batches(name: str, /, **changes: Any) -> dict[str, Tensor]:
    """Everything that an epoch of training, a validation and a test see, by its place."""
    data = make(name, **FILES[name] | changes)
    data.setup()
    data.train_batches = min(data.batches_per_epoch(), 10)
    found = {}
    loaders = {"train": data.train_dataloader(), "val": data.val_dataloader()}
    if test := data.test_dataloader():
        loaders["test"] = test
    for split, loader in loaders.items():
        assert loader.num_workers == changes.get("workers", 0)
        for number, batch in enumerate(loader):
            found |= {f"{split} {number} {key}": value for key, value in batch.items()}
    return found


def equal(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    """NaN is what lies behind the end of a series."""
    return first.keys() == second.keys() and all(
        torch.equal(value.nan_to_num(), second[key].nan_to_num()) for key, value in first.items()
    )


def test_no_data_set_is_left_out() -> None:
    """Here, or, where it is pairs, in test_knobs_pairs.py."""
    assert set(options("data")) == set(FILES) == {*NAMES, *GIVEN}
    assert set(NAMES).isdisjoint(GIVEN)


@pytest.mark.parametrize("name", NAMES)
def test_no_key_is_left_out(name: str) -> None:
    assert keys(name) <= VALUES[kind(name)].keys() | SILENT


@pytest.mark.parametrize(("name", "key"), CASES)
def test_every_knob_changes_the_batches(name: str, key: str) -> None:
    needs = {needed: v for needed, v in NEEDS.get(key, {}).items() if needed in keys(name)}
    changed = needs | {key: VALUES[kind(name)][key]}
    if key == "flip":
        changed = {key: not node(name)[key]}
    assert not equal(batches(name, **needs), batches(name, **changed))


@pytest.mark.parametrize("name", [name for name in NAMES if "workers" in keys(name)])
def test_workers_change_nothing(name: str) -> None:
    assert equal(batches(name, flip=True), batches(name, flip=True, workers=1))


@pytest.mark.parametrize("name", [name for name in NAMES if "root" in keys(name)])
def test_the_root_is_where_it_is_read(name: str) -> None:
    Path(FILES[name]["root"]).rename("moved")
    try:
        batches(name, root="moved")
        with pytest.raises(UserError, match=f"data.root={FILES[name]['root']}"):
            batches(name)
    finally:
        Path("moved").rename(FILES[name]["root"])


@pytest.mark.parametrize("name", [name for name in NAMES if "sha256" in keys(name)])
def test_the_checksum_is_compared(name: str) -> None:
    with pytest.raises(UserError, match="is not the file with"):
        batches(name, sha256="0" * 64)


@pytest.mark.parametrize("name", NAMES)
def test_the_seed_changes_the_order_and_nothing_else(name: str) -> None:
    first, second = make(name, **FILES[name]), make(name, seed=1, **FILES[name])
    for data in (first, second):
        data.setup()
    one, two = (next(iter(data.train_dataloader())) for data in (first, second))
    assert equal(one, two) == (kind(name) == GRAPH)  # which is one batch
    one, two = (next(iter(data.val_dataloader())) for data in (first, second))
    assert equal(one, two)
