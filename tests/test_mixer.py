"""Mixers: their formulas in loops, what they may see, texts and images."""

from itertools import product

import pytest
import torch
from make_model import context, normal, part, place, random_parts
from torch.testing import assert_close

from ablate.errors import UserError
from ablate.model.mask.causal import Causal
from ablate.model.mask.none import NoMask
from ablate.model.mask.window import Window

MIXING = ["convolution", "fixed"]
DIM, HEADS, LENGTH = 6, 3, 8


def layer(name, *, mask=None, grid=None, **own):
    length = LENGTH if grid is None else grid[0] * grid[1]
    here = place(DIM, HEADS, length, mask=mask or Causal(causal=True), grid=grid)
    return random_parts(part("model.mixer", name, **own)(here))


@pytest.mark.parametrize("mask", [Causal(causal=True), Window(causal=True, size=2)])
def test_fixed_weights_are_the_formula(mask):
    fixed, x = layer("fixed", mask=mask), normal(2, 5, DIM)
    values = (x @ fixed.value.weight.T + fixed.value.bias).unflatten(-1, (HEADS, -1))
    near = mask.allowed(torch.arange(5), torch.arange(5))
    read = torch.zeros_like(values)
    for h, i, j in product(range(HEADS), range(5), range(5)):
        if near[i, j]:
            read[:, i, h] += fixed.weight[h, i, j] * values[:, j, h]
    expected = read.flatten(2) @ fixed.out.weight.T + fixed.out.bias
    assert_close(fixed(x, context()), expected)


@pytest.mark.parametrize("depthwise", [True, False])
@pytest.mark.parametrize("causal", [True, False])
def test_a_convolution_has_a_transform_for_each_relative_position(causal, depthwise):
    mask = Causal(causal=True) if causal else NoMask(causal=False)
    conv = layer("convolution", mask=mask, size=3, depthwise=depthwise)
    x, offsets = normal(2, 7, DIM), (-2, -1, 0) if causal else (-1, 0, 1)
    expected = conv.bias.expand(2, 7, DIM).clone()
    for i, (n, offset) in product(range(7), enumerate(offsets)):
        if 0 <= i + offset < 7:
            w = conv.weight[:, :, n]
            w = torch.diag(w[:, 0]) if depthwise else w
            expected[:, i] += x[:, i + offset] @ w.T
    assert_close(conv(x, context()), expected)


def test_a_convolution_of_an_image_goes_over_rows_and_columns():
    conv = layer("convolution", mask=NoMask(causal=False), grid=(4, 5), size=3)
    x = normal(2, 20, DIM)
    expected = conv.bias.expand(2, 20, DIM).clone()
    for row, column, a, b in product(range(4), range(5), (-1, 0, 1), (-1, 0, 1)):
        if 0 <= row + a < 4 and 0 <= column + b < 5:
            seen = x[:, (row + a) * 5 + column + b]
            expected[:, row * 5 + column] += conv.weight[:, 0, a + 1, b + 1] * seen
    assert_close(conv(x, context()), expected)


@pytest.mark.parametrize("name", MIXING)
def test_padding_is_not_read(name):
    mixer, x = layer(name, mask=NoMask(causal=False)), normal(2, 6, DIM)
    keep = torch.tensor([[True] * 6, [True] * 4 + [False] * 2])
    read, other = context(keep=keep), x.clone()
    other[1, 4:] += 1
    assert_close(mixer(x, read), mixer(other, read))
    assert not torch.allclose(mixer(x, context()), mixer(other, context()))


def test_fixed_weights_have_no_more_positions_than_in_training():
    fixed = layer("fixed")
    with pytest.raises(UserError, match="weights for the 8 positions it was trained with"):
        fixed(normal(1, LENGTH + 1, DIM), context())


def test_initial_values_keep_the_size_of_what_is_read():
    """Fixed weights sum up to the size of a value; a convolution is as much smaller than what it
    reads as the output map of an attention is."""
    torch.manual_seed(0)
    x = torch.randn(1, 64, 128)
    here = place(128, 4, 64, std=0.05, out_std=0.01)
    fixed = part("model.mixer", "fixed")(here)
    assert fixed.weight.std().item() == pytest.approx(64**-0.5, rel=0.05)
    for depthwise in (True, False):
        mixer = part("model.mixer", "convolution", depthwise=depthwise)(here)
        y = mixer(x, context())[:, 8:-8]
        assert y.std().item() == pytest.approx(0.2, rel=0.1)
