"""Associative recall: an independent solver finds every answer, and nothing else is asked."""

from collections import Counter

import numpy as np
import pytest
from make_data import ready

from ablate.data.recall import POWER, _draw

SMALL = {"train_examples": 300, "val_examples": 100, "test_examples": 100}


@pytest.fixture(scope="module")
def data():
    return ready("recall", **SMALL)


@pytest.mark.parametrize("split", ["train", "val", "test"])
def test_reading_from_left_to_right_answers_every_query(data, split):
    tensors = data.splits[split].tensors
    half = data.sizes.vocab_size // 2
    for row, targets, pairs in zip(*(t.tolist() for t in tensors.values()), strict=True):
        bound = dict(zip(row[: 2 * pairs : 2], row[1 : 2 * pairs : 2], strict=True))
        assert all(0 < key < half <= value < 2 * half for key, value in bound.items())
        assert len(bound) == len(set(bound.values())) == pairs
        assert sorted(filter(None, row[2 * pairs :])) == sorted(bound)
        rest = [bound[token] if token else -100 for token in row[2 * pairs :]]
        assert targets == [-100] * 2 * pairs + rest
    counts = Counter(tensors["group"].tolist())
    assert set(counts) == {4, 8, 16}
    assert max(counts.values()) - min(counts.values()) <= 1


def test_the_splits_share_no_sequence(data):
    splits = [data.splits[split].tensors["tokens"] for split in ("train", "val", "test")]
    assert len({tuple(row) for tokens in splits for row in tokens.tolist()}) == 500


def test_keys_and_values_are_evenly_used():
    tokens = ready("recall", pairs=[8]).splits["train"].tensors["tokens"]
    keys, values = (np.bincount(tokens[:, i:16:2].flatten(), minlength=128) for i in (0, 1))
    for used in (keys[1:64], values[64:]):
        assert np.abs(used / used.mean() - 1).max() < 0.1


def test_first_draws_follow_the_power_law():
    weights = np.arange(1, 25.0) ** (POWER - 1)
    drawn = _draw(np.random.default_rng(0), np.log(weights), 200_000, 3)
    assert all(len(set(row)) == 3 for row in drawn[:200].tolist())
    found = np.bincount(drawn[:, 0], minlength=24) / len(drawn)
    assert np.abs(found - weights / weights.sum()).max() < 0.005


def test_short_distances_are_queried_most():
    """The share of sequences with a query in the first slots and in the last ones."""
    data = ready("recall", **(SMALL | {"train_examples": 5000}), pairs=[4])
    asked = (data.splits["train"].tensors["targets"] != -100).float().mean(0)[8::2]
    assert asked[0] > 0.6
    assert asked[-5:].mean() < 0.12
    assert float(asked.sum()) == pytest.approx(4, abs=1e-3)


def test_the_tightest_allowed_sizes_work():
    data = ready("recall", **SMALL, vocab_size=10, seq_len=16, pairs=[4])
    assert (data.splits["val"].tensors["targets"] != -100).sum(1).eq(4).all()
