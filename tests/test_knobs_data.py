"""Every knob of a data set changes its batches, and the number of workers changes none.

The keys come from the YAML files, so that a new one without an entry here fails.
"""

from collections.abc import Iterator
from functools import cache
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

from ablate.errors import UserError

# Another value of every key that changes what is read or how it is cut.
OTHER: dict[str, Any] = {
    "path": "other.txt",
    "tokenizer": "byte",
    "vocab_size": 300,
    "seq_len": 12,
    "batch_size": 3,
    "val_fraction": 0.3,
    "test_fraction": 0.3,
    "train_examples": 16,
    "val_examples": 6,
    "test_examples": 6,
    "data_seed": 1,
    "flip": "the other",
    "randaugment": "rand-m9-mstd0.5",
    "size": 20,
    # series
    "columns": ["b"],
    "window": 7,
    "horizon": 3,
    # recall
    "pairs": [1],
    # graphs
    "name": "citeseer",
    "normalise": False,
    # digits on a canvas
    "height": 9,
    "width": 30,
    "scale": 2,
    "min_digits": 2,
    "max_digits": 3,
    "dimmest": 1.0,
    "unfamiliar": [7],
    "min_pixels": 12,
    # preferences
    "rule": "letters",
    "temperature": 100.0,
    "prompt": 5,
}
# Where another value is needed, and what has to be set so that a key has an effect.
OF_ONE: dict[str, dict[str, Any]] = {
    "series": {"path": "other.csv"},
    "preferences": {"path": "preferences.jsonl"},
    "recall": {"vocab_size": 16},
    "text_files": {"seq_len": 6},
    "overlapping_digits": {"size": 24, "min_digits": 1},
    **{name: {"val_fraction": 0.02} for name in ("pydoc", "text", "shakespeare")},
}
NEEDS: dict[str, dict[str, Any]] = {"vocab_size": {"tokenizer": "bpe"}, "randaugment": {"size": 16}}
# Keys that change no batch: where the same content lies, its checksum, the speed of reading, what
# the seasonal naive forecast repeats (test_forecasting.py), what is behind transparent pixels
# (test_image_file.py), which run writes the pairs (test_rlhf.py), and
# which encodes the images (test_autoencoder.py).
SILENT = {"root", "sha256", "workers", "period", "background", "writer", "autoencoder"}
# Keys whose values are in the fingerprint, as what is read changes with them.
PRINTED = {"path", "columns", "data_seed", "val_fraction", "val_examples", "height", "min_digits"}


def node(name: str) -> Any:
    return OmegaConf.load(CONF / "data" / f"{name}.yaml")


def keys(name: str) -> set[str]:
    return {str(key) for key in list(node(name)) if not str(key).startswith("_")}


NAMES = [name for name in options("data") if name not in GIVEN]
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


@cache
def usual(name: str, needed: str = "") -> dict[str, Tensor]:
    """The batches that another value of a key is compared with."""
    return batches(name, **given(name, needed))


def given(name: str, key: str) -> dict[str, Any]:
    return {needed: v for needed, v in NEEDS.get(key, {}).items() if needed in keys(name)}


def equal(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    """NaN is what lies behind the end of a series."""
    return first.keys() == second.keys() and all(
        torch.equal(value.nan_to_num(), second[key].nan_to_num()) for key, value in first.items()
    )


def test_no_data_set_is_left_out() -> None:
    """Here, or, where it is pairs, in test_knobs_pairs.py."""
    assert set(options("data")) == set(FILES) == {*NAMES, *GIVEN}


@pytest.mark.parametrize(("name", "key"), CASES)
def test_every_knob_changes_the_batches(name: str, key: str) -> None:
    needs = given(name, key)
    other = OTHER | OF_ONE.get(name, {}) | {"flip": not node(name).get("flip")}
    changed = needs | {key: other[key]}
    assert not equal(usual(name, key if needs else ""), batches(name, **changed))
    if key in PRINTED:
        prints = [make(name, **FILES[name] | one).fingerprint() for one in (needs, changed)]
        assert prints[0] != prints[1]


@pytest.mark.parametrize("name", [name for name in NAMES if "workers" in keys(name)])
def test_workers_change_nothing(name: str) -> None:
    assert equal(batches(name, flip=True), batches(name, flip=True, workers=1))


@pytest.mark.parametrize("name", [name for name in NAMES if "root" in keys(name)])
def test_the_root_is_where_it_is_read(name: str) -> None:
    before = usual(name)
    Path(FILES[name]["root"]).rename("moved")
    try:
        assert equal(batches(name, root="moved"), before)
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
    assert first.fingerprint() == second.fingerprint()
    one, two = (next(iter(data.train_dataloader())) for data in (first, second))
    assert equal(one, two) == ("graph" in first.kind)  # which is one batch
    one, two = (next(iter(data.val_dataloader())) for data in (first, second))
    assert equal(one, two)
