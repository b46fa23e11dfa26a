"""Every knob of a set of pairs changes its batches; those that say where it lies change none.

The keys come from the YAML files, so that a new one without an entry here fails.
"""

from pathlib import Path
from typing import Any

import make_files
import pytest
import torch
from make_data import CONF, make
from omegaconf import OmegaConf

from ablate.config.facts import Facts
from ablate.data.pairs import Pairs

COUNTS = {"train_examples": 60, "val_examples": 20, "test_examples": 20, "batch_size": 4}
TEXTS = {"batch_size": 4, "tokenizer": "word", "vocab_size": None}
# What each set is given where `write_pairs` wrote, and another value of every key that is a choice.
GIVEN: dict[str, dict[str, Any]] = {
    "parallel": TEXTS | {"source": "lines.de", "target": "lines.en", "val_fraction": 0.2},
    "multi30k": TEXTS | {"root": "multi30k", "joint": False},
    "cmudict": {"root": "cmudict", "batch_size": 4},
    **dict.fromkeys(("reverse", "copy", "sort"), COUNTS),
    "speech": COUNTS | {"codes": 16},
    "recordings": {"root": "recordings", "codes": 16, "batch_size": 4},
    "dates": COUNTS | {"locales": ["en_US", "de_DE"], "styles": ["long"], "years": [2011, 2015]},
}
OTHER: dict[str, Any] = {
    "source": "lines.en",
    "target": "lines.de",
    "val_source": "lines.de",
    "test_source": "lines.de",
    "val_fraction": 0.4,
    "test_fraction": 0.3,
    "tokenizer": "char",
    "vocab_size": 300,
    "min_count": 3,
    "joint": True,
    "max_length": 4,
    "pair": ["en", "fr"],
    "stress": True,
    "variants": "all",
    "locales": ["de_DE"],
    "styles": ["full"],
    "years": [2001, 2010],
    "symbols": 9,
    "min_length": 4,
    "max_train_length": 9,
    "test_max_length": 9,
    "train_examples": 40,
    "val_examples": 30,
    "test_examples": 30,
    "batch_size": 3,
    "data_seed": 1,
    "texts": "sentences",
    "direction": "recognition",
    "voice": "de",
    "speed": 120,
    "pitch": 80,
    "codes": 9,
}
# What has to be set so that a key has an effect, and what is set together with it.
NEEDS: dict[str, dict[str, Any]] = {"vocab_size": {"tokenizer": "bpe", "vocab_size": 270}}
TOGETHER: dict[str, dict[str, Any]] = {
    "val_source": {"val_target": "lines.en", "val_fraction": None},
    "test_source": {"test_target": "lines.en"},
}
SILENT = {"root", "val_target", "test_target"}  # where it lies; the targets go with the sources


def keys(name: str) -> set[str]:
    return {str(key) for key in OmegaConf.load(CONF / f"{name}.yaml")} - {"_target_"}


CASES = [(name, key) for name in GIVEN for key in sorted(keys(name) - SILENT)]


@pytest.fixture(autouse=True)
def _files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make_files.write_pairs()


def batches(name: str, **changes: Any) -> list[torch.Tensor]:
    """An epoch of training, a validation and a test."""
    data = make(name, **(GIVEN[name] | changes))
    assert isinstance(data, Pairs)
    data.setup()
    loaders = [data.train_dataloader(), data.val_dataloader(), data.test_dataloader()]
    return [tensor for loader in loaders if loader for batch in loader for tensor in batch.values()]


def equal(first: list[torch.Tensor], second: list[torch.Tensor]) -> bool:
    return len(first) == len(second) and all(map(torch.equal, first, second))


@pytest.mark.parametrize(("name", "key"), CASES)
def test_every_knob_changes_the_batches(name: str, key: str) -> None:
    needs = NEEDS.get(key, {})
    other = OTHER | {"lower": name not in ("multi30k", "recordings")}
    if name == "speech":
        other |= {"max_length": 30}
    if name == "recordings":
        other |= {"max_length": 20, "tokenizer": "word"}
    changed = needs | TOGETHER.get(key, {}) | {key: other[key]}
    assert not equal(batches(name, **needs), batches(name, **changed))


@pytest.mark.parametrize("name", [name for name in GIVEN if "root" in GIVEN[name]])
def test_the_folder_of_the_data_changes_nothing(name: str) -> None:
    before = batches(name)
    Path(name).rename("moved")
    assert equal(batches(name, root="moved"), before)


@pytest.mark.parametrize("name", list(GIVEN))
def test_what_the_rules_know_about_the_vocabulary(name: str) -> None:
    for changes in [{"joint": both} for both in (True, False)] if "joint" in keys(name) else [{}]:
        data = make(name, **(GIVEN[name] | changes))
        data.setup()
        node = {"_target_": OmegaConf.load(CONF / f"{name}.yaml")._target_, **changes}
        assert Facts(OmegaConf.create({"data": node})).joint == data.sizes["joint"]


@pytest.mark.parametrize("name", list(GIVEN))
def test_the_seed_changes_the_order_of_training_and_nothing_else(name: str) -> None:
    first, second = (make(name, seed=seed, **GIVEN[name]) for seed in (0, 1))
    orders = []
    for data in (first, second):
        assert isinstance(data, Pairs)
        data.setup()
        orders.append([batch["index"].tolist() for batch in data.train_dataloader()])
    assert orders[0] != orders[1]
    assert first.texts == second.texts  # type: ignore[attr-defined]
    one, two = (next(iter(data.val_dataloader())) for data in (first, second))
    assert equal(list(one.values()), list(two.values()))
