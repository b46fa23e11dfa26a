"""Masks against matrices written by hand; their spans against the matrices."""

from itertools import combinations

import pytest
import torch

from ablate.model.mask import Mask, combine
from ablate.model.mask.causal import Causal
from ablate.model.mask.none import NoMask
from ablate.model.mask.prefix import Prefix
from ablate.model.mask.window import Window

ALL = [
    NoMask(causal=False),
    Causal(causal=True),
    *(Window(causal=causal, size=size) for causal in (False, True) for size in (1, 2, 3, 20)),
    *(Prefix(causal=True, size=size) for size in (1, 2, 5, 20)),
]


def matrix(text):
    return torch.tensor([[mark == "x" for mark in row] for row in text.split()])


def square(mask, length):
    positions = torch.arange(length)
    return mask.allowed(positions, positions)


@pytest.mark.parametrize(
    ("mask", "drawn"),
    [
        (NoMask(causal=False), "xxxx xxxx xxxx xxxx"),
        (Causal(causal=True), "x... xx.. xxx. xxxx"),
        (Window(causal=False, size=2), "xx... xxx.. .xxx. ..xxx ...xx"),
        (Window(causal=True, size=3), "x.... xx... xxx.. .xxx. ..xxx"),
        (Prefix(causal=True, size=3), "xxx.. xxx.. xxx.. xxxx. xxxxx"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Mask) else value,
)
def test_allowed_is_as_drawn(mask, drawn):
    expected = matrix(drawn)
    assert torch.equal(square(mask, len(expected)), expected)


@pytest.mark.parametrize("mask", ALL, ids=lambda mask: str(vars(mask)))
def test_what_a_mask_says_of_itself_is_what_its_matrix_shows(mask):
    """Its span: the tightest range."""
    i, j = torch.arange(3, 9), torch.arange(12)
    begin, end = mask.between(i, len(j))
    assert "range" in mask.needs
    assert torch.equal((j >= begin[:, None]) & (j < end[:, None]), mask.allowed(i, j))
    full = square(mask, 12)
    assert mask.look_ahead == bool(full.triu(1).any())
    assert mask.restricts or full.all()
    size = 9
    for keys in (4, size):
        full = mask.allowed(torch.arange(size), torch.arange(keys))
        for first, last in combinations(range(size + 1), 2):
            seen = full[first:last].any(0).nonzero().flatten().tolist()
            low, high = mask.span(first, last, keys)
            assert 0 <= low <= high <= keys
            assert (seen[0], seen[-1] + 1) == (low, high) if seen else low == high


def test_combine_joins_the_mask_with_padding():
    i = j = torch.arange(4)
    keep = torch.tensor([[True, True, True, True], [True, True, False, False]])
    none, causal = NoMask(causal=False), Causal(causal=True)
    both, padding, alone = combine(causal, i, j, keep), combine(none, i, j, keep), square(causal, 4)
    assert torch.equal(both, torch.stack([alone, matrix("x... xx.. xx.. xx..")])[:, None])
    assert torch.equal(padding.expand(2, 1, 4, 4), keep[:, None, None].expand(2, 1, 4, 4))
    assert torch.equal(combine(causal, i, j, None), alone)
    assert combine(none, i, j, None) is None
