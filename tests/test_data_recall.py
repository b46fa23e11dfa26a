"""Associative recall: an independent solver finds every answer, and nothing else is asked."""

from collections import Counter

import numpy as np
import pytest
from make_data import ready

from ablate.data.recall import POWER, Sequences, _draw

SMALL = {"train_examples": 300, "val_examples": 100, "test_examples": 100}


@pytest.fixture(scope="module")
def data():
    return ready("recall", **SMALL)


def sequences(data, split):
    found = data.splits[split]
    assert isinstance(found, Sequences)
    return found


@pytest.mark.parametrize("split", ["train", "val", "test"])
def test_reading_from_left_to_right_answers_every_query(data, split):
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
def test_every_number_of_pairs_is_equally_frequent(data, split):
    counts = Counter(sequences(data, split).tensors["group"].tolist())
    assert set(counts) == {4, 8, 16}
    assert max(counts.values()) - min(counts.values()) <= 1


def test_the_splits_share_no_sequence(data):
    rows = [
        {tuple(row) for row in sequences(data, split).tensors["tokens"].tolist()}
        for split in ("train", "val", "test")
    ]
    assert len(rows[0] | rows[1] | rows[2]) == 500


def test_keys_and_values_are_evenly_used():
    tokens = sequences(ready("recall", pairs=[8]), "train").tensors["tokens"]
    keys, values = (np.bincount(tokens[:, i:16:2].flatten(), minlength=128) for i in (0, 1))
    assert np.abs(keys[1:64] / keys[1:64].mean() - 1).max() < 0.1
    assert np.abs(values[64:] / values[64:].mean() - 1).max() < 0.1


def test_first_draws_follow_the_power_law():
    weights = np.arange(1, 25.0) ** (POWER - 1)
    drawn = _draw(np.random.default_rng(0), np.log(weights), 200_000, 3)
    assert all(len(set(row)) == 3 for row in drawn[:200].tolist())
    found = np.bincount(drawn[:, 0], minlength=24) / len(drawn)
    assert np.abs(found - weights / weights.sum()).max() < 0.005


def test_short_distances_are_queried_most():
    """The share of sequences with a query in the first slots and in the last ones."""
    data = ready("recall", **(SMALL | {"train_examples": 5000}), pairs=[4])
    asked = (sequences(data, "train").tensors["targets"] != -100).float().mean(0)[8::2]
    assert asked[0] > 0.6
    assert asked[-5:].mean() < 0.12
    assert float(asked.sum()) == pytest.approx(4, abs=1e-3)


def test_the_tightest_allowed_sizes_work():
    data = ready("recall", **SMALL, vocab_size=10, seq_len=16, pairs=[4])
    assert (sequences(data, "val").tensors["targets"] != -100).sum(1).eq(4).all()
