"""Masks against matrices written by hand; their spans against the matrices."""

from pathlib import Path

import pytest
import torch
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from torch import Tensor

from ablate.errors import UserError
from ablate.model.mask import Mask, combine
from ablate.model.mask.causal import Causal
from ablate.model.mask.neighbours import Neighbours
from ablate.model.mask.none import NoMask
from ablate.model.mask.prefix import Prefix
from ablate.model.mask.window import Window

CONF = Path(__file__).parents[1] / "conf"
NAMES = sorted(path.stem for path in (CONF / "model.mask").glob("*.yaml"))
ALL: list[Mask] = [
    NoMask(causal=False),
    Neighbours(causal=False),
    Causal(causal=True),
    *(Window(causal=causal, size=size) for causal in (False, True) for size in (1, 2, 3, 20)),
    *(Prefix(causal=True, size=size) for size in (1, 2, 5, 20)),
]


def ids(mask: Mask) -> str:
    return f"{type(mask).__name__}-{'-'.join(map(str, vars(mask).values()))}"


def matrix(text: str) -> Tensor:
    return torch.tensor([[mark == "x" for mark in row] for row in text.split()])


def square(mask: Mask, length: int) -> Tensor:
    positions = torch.arange(length)
    return mask.allowed(positions, positions)


@pytest.mark.parametrize(
    ("mask", "drawn"),
    [
        (NoMask(causal=False), "xxxx xxxx xxxx xxxx"),
        (Causal(causal=True), "x... xx.. xxx. xxxx"),
        (Window(causal=False, size=2), "xx... xxx.. .xxx. ..xxx ...xx"),
        (Window(causal=True, size=2), "x... xx.. .xx. ..xx"),
        (Window(causal=True, size=3), "x.... xx... xxx.. .xxx. ..xxx"),
        (Window(causal=False, size=1), "x.. .x. ..x"),
        (Prefix(causal=True, size=3), "xxx.. xxx.. xxx.. xxxx. xxxxx"),
        (Prefix(causal=True, size=1), "x... xx.. xxx. xxxx"),
    ],
    ids=lambda value: ids(value) if isinstance(value, Mask) else value,
)
def test_allowed_is_as_drawn(mask: Mask, drawn: str) -> None:
    expected = matrix(drawn)
    assert torch.equal(square(mask, len(expected)), expected)


@pytest.mark.parametrize("mask", ALL, ids=ids)
def test_the_last_queries_see_what_they_see_among_all(mask: Mask) -> None:
    """Decoding with a cache: fewer queries than keys, aligned at the bottom right."""
    full = square(mask, 9)
    assert torch.equal(mask.allowed(torch.arange(6, 9), torch.arange(9)), full[6:])


@pytest.mark.parametrize("mask", ALL, ids=ids)
def test_look_ahead_and_restricts_are_what_the_matrix_shows(mask: Mask) -> None:
    full = square(mask, 12)
    assert mask.look_ahead == bool(full.triu(1).any())
    if not mask.restricts:
        assert full.all()
    assert full.diagonal().all()


@pytest.mark.parametrize("mask", ALL, ids=ids)
def test_between_is_what_a_query_sees(mask: Mask) -> None:
    i, j = torch.arange(3, 9), torch.arange(12)
    begin, end = mask.between(i, len(j))
    assert mask.ranges
    assert torch.equal((j >= begin[:, None]) & (j < end[:, None]), mask.allowed(i, j))


def test_a_window_of_a_image_is_no_range() -> None:
    assert not Window(causal=False, size=2, grid=(3, 3)).ranges


@pytest.mark.parametrize("mask", ALL, ids=ids)
def test_span_is_the_tightest_range(mask: Mask) -> None:
    size = 9
    for keys in (4, size):
        full = mask.allowed(torch.arange(size), torch.arange(keys))
        for first in range(size):
            for last in range(first + 1, size + 1):
                seen = full[first:last].any(0).nonzero().flatten().tolist()
                low, high = mask.span(first, last, keys)
                assert 0 <= low <= high <= keys
                assert (seen[0], seen[-1] + 1) == (low, high) if seen else low == high


def test_combine_joins_the_mask_with_padding() -> None:
    i = j = torch.arange(4)
    keep = torch.tensor([[True, True, True, True], [True, True, False, False]])
    causal = combine(Causal(causal=True), i, j, keep)
    assert causal is not None
    assert causal.shape == (2, 1, 4, 4)
    assert torch.equal(causal[0, 0], matrix("x... xx.. xxx. xxxx"))
    assert torch.equal(causal[1, 0], matrix("x... xx.. xx.. xx.."))
    padding = combine(NoMask(causal=False), i[:3], j, keep)
    assert padding is not None
    assert padding.shape == (2, 1, 3, 4)
    assert torch.equal(padding[1, 0], matrix("xx.. xx.. xx.."))
    alone = combine(Causal(causal=True), i, j, None)
    assert alone is not None
    assert torch.equal(alone, matrix("x... xx.. xxx. xxxx"))
    assert combine(NoMask(causal=False), i, j, None) is None


@pytest.mark.parametrize("make", [Window, Prefix])
def test_sizes_below_one_are_refused(make: type[Window] | type[Prefix]) -> None:
    with pytest.raises(UserError, match=r"model\.mask\.size=0 must be at least 1"):
        make(causal=True, size=0)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_every_option_composes_and_builds(name: str, causal: bool) -> None:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        node = compose(overrides=[f"+model.mask={name}"]).model.mask
    mask = instantiate(node)(causal=causal)
    assert isinstance(mask, Mask)
    assert square(mask, 5).dtype == torch.bool
