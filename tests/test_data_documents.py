"""Rows of documents: what each layout puts into a row, and what its targets are."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from ablate.data import IGNORED
from ablate.data.document_rows import ConsecutiveRows, DocumentRows, packed
from ablate.data.loader import Request
from ablate.kernel.interface.documents import Documents

FIRST = np.array([0, 7, 8, 31, 36, 36 + 23])
COUNT = 70


def rows(layout, kind=DocumentRows, **how):
    """Of a sequence in which a token is its own position."""
    return kind(lambda where: where, COUNT, FIRST, 10, layout, **how)


@pytest.mark.parametrize("layout", ["ignore", "mask", "align", "pack"])
def test_a_target_is_the_next_token_of_its_document(layout):
    made = rows(layout, restart=True)
    batch = made[Request(0, torch.arange(len(made)))]
    tokens, targets = batch["tokens"], batch["targets"]
    counted = targets != IGNORED
    assert_close(targets[counted], tokens[counted] + 1)
    assert not set(targets[counted].tolist()) & set(FIRST.tolist())
    if layout == "ignore":
        assert "documents" not in batch
        return
    document = torch.from_numpy(FIRST.searchsorted(tokens, side="right"))
    same = batch["documents"][:, :, None] == batch["documents"][:, None]
    real = counted[:, :, None] & counted[:, None]
    assert not (same & real & (document[:, :, None] != document[:, None])).any()
    assert_close(batch["document_positions"], Documents.numbered(batch["documents"]).position)


def test_rows_are_cut_as_their_layout_tells():
    every = {
        layout: made[Request(0, torch.arange(len(made)))]
        for layout in ("mask", "align", "pack")
        if (made := rows(layout))
    }
    assert every["mask"]["tokens"][:, 0].tolist() == list(range(COUNT - 10))
    assert every["align"]["tokens"][:, 0].tolist() == [0, 8, 18, 28, 31, 36, 46, 56, 59]
    assert {*FIRST} - {7} <= {*every["align"]["tokens"][:, 0].tolist()}
    tokens, targets = (every["pack"][name] for name in ("tokens", "targets"))
    counted = tokens[targets != IGNORED]
    assert sorted(counted.tolist()) == [n for n in range(COUNT - 1) if n + 1 not in FIRST]
    for first, beyond in zip(FIRST, [*FIRST[1:], COUNT], strict=True):
        if 1 < beyond - first <= 11:  # it fits
            (row,) = {int(row) for row in torch.where((tokens == first) & (targets != IGNORED))[0]}
            assert {*range(first, beyond - 1)} <= {*tokens[row].tolist()}


def test_all_layouts_are_measured_by_the_same_targets():
    found = []
    for layout in ("ignore", "mask", "align", "pack"):
        made = rows(layout, ConsecutiveRows)
        batch = made[Request(0, torch.arange(len(made)))]
        found.append((batch["tokens"], batch["targets"]))
        targets = batch["targets"][batch["targets"] != IGNORED]
        assert targets.tolist() == [n for n in range(1, COUNT) if n not in FIRST]
    for other in found[1:]:
        assert_close(other, found[0])


@given(st.lists(st.integers(0, 40), min_size=1, max_size=60), st.integers(1, 16))
def test_packing_loses_no_token_and_fills_rows(sizes, length):
    sizes = np.array([*sizes, 1])
    first = np.cumsum(sizes + 1) - sizes - 1
    pieces, row = packed(first, sizes, length)
    fills = np.add.reduceat(pieces[:, 1], row[:-1])
    assert fills.max() <= length
    covered = np.concatenate([np.arange(start, start + size) for start, size in pieces])
    wanted = np.concatenate([np.arange(a, a + n) for a, n in zip(first, sizes, strict=True)])
    assert sorted(covered.tolist()) == wanted.tolist()
    assert len(fills) <= 2 * -(-sizes.sum() // length)
