"""Associative recall: an independent solver finds every answer, and nothing else is asked."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
from make_data import make, ready

from ablate.data import Data, Request
from ablate.data.recall import POWER, Sequences, _draw
from ablate.errors import UserError

SMALL = {"train_examples": 300, "val_examples": 100, "test_examples": 100}


@pytest.fixture(scope="module")
def data() -> Data:
    return ready("recall", **SMALL)


def sequences(data: Data, split: str) -> Sequences:
    found = data.splits[split]
    assert isinstance(found, Sequences)
    return found


@pytest.mark.parametrize("split", ["train", "val", "test"])
def test_reading_from_left_to_right_answers_every_query(data: Data, split: str) -> None:
    tensors = sequences(data, split).tensors
    half = data.sizes["vocab_size"] // 2
    for row, targets, pairs in zip(*(t.tolist() for t in tensors.values()), strict=True):
        bound: dict[int, int] = {}
        asked = []
        for position, (token, target) in enumerate(zip(row, targets, strict=True)):
            if position < 2 * pairs:
                assert target == -100
                if position % 2:
                    assert half <= token < 2 * half
                    bound[row[position - 1]] = token
                else:
                    assert 0 < token < half
            elif token:
                assert target == bound[token]
                asked.append(token)
            else:
                assert target == -100
        assert len(bound) == len(set(bound.values())) == pairs
        assert sorted(asked) == sorted(bound)


@pytest.mark.parametrize("split", ["train", "val", "test"])
def test_every_number_of_pairs_is_equally_frequent(data: Data, split: str) -> None:
    counts = Counter(sequences(data, split).tensors["group"].tolist())
    assert set(counts) == {4, 8, 16}
    assert max(counts.values()) - min(counts.values()) <= 1


def test_the_splits_share_no_sequence(data: Data) -> None:
    rows = [
        {tuple(row) for row in sequences(data, split).tensors["tokens"].tolist()}
        for split in ("train", "val", "test")
    ]
    assert len(rows[0] | rows[1] | rows[2]) == 500


def test_the_run_seed_changes_the_order_and_not_the_sequences(data: Data) -> None:
    other = ready("recall", seed=1, **SMALL)
    for split in ("train", "val", "test"):
        assert (
            sequences(other, split)
            .tensors["tokens"]
            .equal(sequences(data, split).tensors["tokens"])
        )
    assert data.fingerprint() == other.fingerprint()
    first, second = (next(iter(d.train_dataloader()))["tokens"] for d in (data, other))
    assert not first.equal(second)


def test_the_data_seed_changes_the_sequences(data: Data) -> None:
    other = ready("recall", data_seed=1, **SMALL)
    assert other.fingerprint() != data.fingerprint()
    assert (
        not sequences(other, "val")
        .tensors["tokens"]
        .equal(sequences(data, "val").tensors["tokens"])
    )


def test_keys_and_values_are_evenly_used() -> None:
    tokens = sequences(ready("recall", pairs=[8]), "train").tensors["tokens"]
    keys, values = (np.bincount(tokens[:, i:16:2].flatten(), minlength=128) for i in (0, 1))
    assert np.abs(keys[1:64] / keys[1:64].mean() - 1).max() < 0.1
    assert np.abs(values[64:] / values[64:].mean() - 1).max() < 0.1


def test_first_draws_follow_the_power_law() -> None:
    weights = np.arange(1, 25.0) ** (POWER - 1)
    drawn = _draw(np.random.default_rng(0), np.log(weights), 200_000, 3)
    assert all(len(set(row)) == 3 for row in drawn[:200].tolist())
    found = np.bincount(drawn[:, 0], minlength=24) / len(drawn)
    assert np.abs(found - weights / weights.sum()).max() < 0.005


def test_short_distances_are_queried_most() -> None:
    """The share of sequences with a query in the first slots and in the last ones."""
    data = ready("recall", **(SMALL | {"train_examples": 5000}), pairs=[4])
    asked = (sequences(data, "train").tensors["targets"] != -100).float().mean(0)[8::2]
    assert asked[0] > 0.6
    assert asked[-5:].mean() < 0.12
    assert float(asked.sum()) == pytest.approx(4, abs=1e-3)


def test_the_example_names_its_tokens(data: Data) -> None:
    example = data.example()
    assert example["tokens"].shape == (1, 64)
    assert [label[0] for label in example["labels"][:8]] == list("kvkvkvkv")
    assert set(example["labels"][8:]) - {"·"} == set(example["labels"][0:8:2])


def test_batches_carry_their_group(data: Data) -> None:
    batch = data.splits["val"][Request(0, sequences(data, "val").tensors["group"][:2])]
    assert {name: tuple(t.shape) for name, t in batch.items()} == {
        "tokens": (2, 64),
        "targets": (2, 64),
        "group": (2,),
    }


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        (
            {"pairs": [4, 40], "vocab_size": 64},
            "data.pairs=[4, 40]: data.vocab_size=64 has only 31 keys, at least data.vocab_size=82",
        ),
        ({"pairs": [17]}, "data.seq_len=64: 17 pairs and their queries need at least 68"),
        ({"pairs": []}, "data.pairs=[]: must be a list"),
        ({"pairs": 4}, "data.pairs=4: must be a list"),
        ({"pairs": [4, 4]}, "data.pairs=[4, 4]: holds a number twice"),
        ({"pairs": [0]}, "data.pairs=[0]: must be a list [..] of a whole number of at least 1"),
        ({"vocab_size": "x"}, "data.vocab_size=x: must be a whole number"),
        ({"val_examples": 2}, "data.val_examples=2: must be a whole number of at least 3"),
        ({"vocab_size": None}, "data.vocab_size=null: must be a whole number of at least 4"),
        ({"data_seed": -1}, "data.data_seed=-1: must be a whole number of at least 0"),
    ],
)
def test_a_bad_value_is_refused(changes: dict[str, Any], line: str) -> None:
    with pytest.raises(Exception, match="Error in call") as caught:
        make("recall", **changes)
    assert isinstance(caught.value.__cause__, UserError)
    assert line in str(caught.value.__cause__)


def test_the_tightest_allowed_sizes_work() -> None:
    data = ready("recall", **SMALL, vocab_size=10, seq_len=16, pairs=[4])
    assert (sequences(data, "val").tensors["targets"] != -100).sum(1).eq(4).all()
