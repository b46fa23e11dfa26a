"""Every key in the YAML of a data set changes its batches; the number of workers changes none."""

from functools import cache
from itertools import islice
from pathlib import Path

import pytest
import torch
from make_data import make, ready
from make_files import FILES
from make_knobs import other
from make_model import options
from make_rules import rules_of_options
from make_systems import list_of_systems, rows_of_systems
from omegaconf import OmegaConf

from ablate.config.parts import class_attribute
from ablate.config.view import PAIRS, CompositionView
from ablate.errors import UserError

# Where no other value follows from the key's rule, or the first is refused or changes no batch.
OTHERS = {
    "path": "other.txt",
    "vocab_size": 300,
    "seq_len": 12,
    "val_fraction": 0.3,
    "test_fraction": 0.3,
    "train_examples": 16,
    "randaugment": "rand-m9-mstd0.5",
    "size": 20,
    "repeats": 2,
    "image": "mirrored",
    "label": "number",
    "pairs": [1],  # to recall
    "weights": {"a": 3, "b": 1},
    "phases": {1: {"b": 1}},
    # digits on a canvas
    "height": 9,
    "width": 30,
    "min_digits": 2,
    # pairs
    **dict.fromkeys(("source", "val_source", "test_source"), "lines.en"),
    **dict.fromkeys(("target", "val_target", "test_target"), "lines.de"),
    "max_length": 4,
    "pair": ["en", "fr"],
    "locales": ["de_DE"],
    "styles": ["full"],
    "years": [2001, 2010],
    **rows_of_systems("DATA_OTHERS"),
}
# Of one data set; and what has to be set so that a key has an effect.
OF_ONE = {
    "recall": {"vocab_size": 16},
    "text_files": {"seq_len": 6},
    **{name: {"tokenizer": "char", "max_length": 22} for name in ("multi30k", "parallel")},
    **{name: {"val_fraction": 0.02} for name in ("pydoc", "text", "shakespeare")},
    **rows_of_systems("DATA_OF_ONE"),
}
VAL_FILES = {"val_source": "lines.de", "val_target": "lines.en", "val_fraction": None}
TEST_FILES = {"test_source": "lines.de", "test_target": "lines.en"}
CHARACTERS = {"tokenizer": "char", "vocab_size": None}
NEEDS = {
    "unit": {"path": "lines.en", "val_fraction": 0.3},
    "vocab_size": {"tokenizer": "bpe"},
    "randaugment": {"size": 16},
    "positions": {"documents": "mask"},
    "train_examples": {"batch_size": 4},
    "lower": {"val_fraction": 0.3},
    "min_count": {"tokenizer": "word", "vocab_size": None},
    **dict.fromkeys(("max_length", "val_fraction", "test_fraction"), CHARACTERS),
    **dict.fromkeys(("val_source", "val_target"), VAL_FILES),
    **dict.fromkeys(("test_source", "test_target"), TEST_FILES),
}
# Keys that change no batch: where the same content lies, its checksum, the speed of reading, and
# what is behind transparent pixels (test_image_file.py).
SILENT = {"root", "sha256", "workers", "background", *list_of_systems("DATA_SILENT")}
# Keys whose values are in the fingerprint, as what is read changes with them.
PRINTED = {
    *("path", "data_seed", "val_fraction", "val_examples", "height", "min_digits"),
    *("shift", "unit", *list_of_systems("DATA_PRINTED")),
}


# Of shards these keys name what is in the files (test_data_tokens.py).
OF_FILES = {name: {"tokenizer", "vocab_size", "val_fraction"} for name in ("tokens", "mixture")}
NAMES = [name for name in options("data") if name not in list_of_systems("DATA_ELSEWHERE")]
RULES = {name: rules_of_options()[f"data/{name}.yaml"] for name in NAMES}


def keys(name):
    found = {key.removeprefix("data.") for key in RULES[name]}
    return {key for key in found if not key.startswith("_")}


def kind(name):
    return class_attribute(RULES[name]["data._target_"][0], "kind")


SLOW = list_of_systems("SLOW_DATA")


def marks(name, key):
    """Slow data sets: in CI for keys that only they have. The keys of pydoc, which is long, are
    those of text."""
    if name in SLOW:
        others = (other for other in NAMES if other != name)
        return [pytest.mark.slow if any(key in keys(o) for o in others) else pytest.mark.ci]
    return [pytest.mark.slow] if name == "pydoc" and key in keys("text") else []


CASES = [
    pytest.param(name, key, marks=marks(name, key))
    for name in NAMES
    for key in sorted(keys(name) - SILENT - OF_FILES.get(name, set()))
]


@pytest.fixture(autouse=True, scope="module")
def _other_text(small_files):
    Path("other.txt").write_text(Path("text.txt").read_text()[::-1])


def batches(name, /, **changes):
    """Everything that an epoch of training, a validation and a test see, by its place."""
    data = ready(name, **FILES[name] | changes)
    data.train_batches = min(data.batches_per_epoch(), 10)
    return measured(data, "train", "val", "test")


def measured(data, *splits):
    """What a validation and a test see, or these splits, by its place."""
    found = {}
    for split in splits or ("val", "test"):
        loader = getattr(data, f"{split}_dataloader")()
        if loader is not None:
            assert loader.num_workers == (data.workers or 0)  # null: of one thread
            for number, batch in enumerate(loader):
                found |= {f"{split} {number} {key}": value for key, value in batch.items()}
    return found


@cache
def usual(name, needed=""):
    """The batches that another value of a key is compared with."""
    return batches(name, **given(name, needed))


def given(name, key):
    return {needed: v for needed, v in NEEDS.get(key, {}).items() if needed in keys(name)}


def changed(name, key):
    """Another value of a key, and what it needs."""
    needs, others = given(name, key), OTHERS | OF_ONE.get(name, {})
    now, rule = RULES[name][f"data.{key}"]
    now = (FILES[name] | needs).get(key, now)
    return needs | {key: others[key] if key in others else other(f"data.{key}", now, rule)}


def equal(first, second):
    """NaN is what lies behind the end of a series."""
    return first.keys() == second.keys() and all(
        torch.equal(value.nan_to_num(), second[key].nan_to_num()) for key, value in first.items()
    )


@pytest.mark.ci
@pytest.mark.parametrize(("name", "key"), CASES)
def test_every_knob_changes_the_batches(name, key):
    needs, others = given(name, key), changed(name, key)
    assert not equal(usual(name, key if needs else ""), batches(name, **others))
    if key in PRINTED:
        prints = [make(name, **FILES[name] | one).fingerprint() for one in (needs, others)]
        assert prints[0] != prints[1]


@cache
def finished(name, needed):
    """The data of a run, and what it is measured with."""
    run = ready(name, **FILES[name] | given(name, needed))
    return run, measured(run)


@pytest.mark.parametrize(
    ("name", "key"),
    [pytest.param(*case.values, marks=[pytest.mark.slow] * bool(case.marks)) for case in CASES],
)
def test_a_finished_run_is_measured_with_the_keys_that_change_what_is_measured(name, key):
    run, of_run = finished(name, key if given(name, key) else "")
    if key in {*run.dividing, "batch_size"}:
        return
    other = make(name, **FILES[name] | changed(name, key))
    other.measure_as(run)
    try:
        other.setup()
    except UserError:  # such as of a character that the run has no token for
        assert key not in run.for_training
        return
    references = [
        [getattr(data, "texts", {}).get(s) for s in ("val", "test")] for data in (run, other)
    ]
    same = equal(of_run, measured(other)) and references[0] == references[1]
    assert same == (key in run.for_training)


@pytest.mark.ci
@pytest.mark.parametrize("name", [name for name in NAMES if "workers" in keys(name)])
def test_workers_change_nothing(name):
    assert equal(batches(name, flip=True), batches(name, flip=True, workers=1))


@pytest.mark.ci
@pytest.mark.parametrize("name", NAMES)
def test_the_seed_changes_the_order_and_nothing_else(name):
    first, second = both = [ready(name, seed=seed, **FILES[name]) for seed in (0, 2)]
    assert first.fingerprint() == second.fingerprint()
    one, two = ([*islice(data.train_dataloader(), 9)] for data in both)
    assert all(map(equal, one, two)) == (name in list_of_systems("ONE_BATCH"))
    assert equal(*(next(iter(data.val_dataloader())) for data in both))


@pytest.mark.ci
@pytest.mark.parametrize("name", [name for name in NAMES if kind(name) == PAIRS])
def test_what_the_rules_know_about_the_vocabulary(name):
    for joint in [{"joint": both} for both in (True, False)] if "joint" in keys(name) else [{}]:
        data = ready(name, **FILES[name] | joint)
        target = RULES[name]["data._target_"][0]
        facts = CompositionView(OmegaConf.create({"data": {"_target_": target, **joint}}))
        assert facts.joint == data.sizes.joint
