"""ViT: patches of every kind, and what positions and scores read; test_pretrained.py has timm's."""

from itertools import product

import pytest
import torch
from make_model import SIZES, normal, options, random_parts, vit
from torch.testing import assert_close

from ablate.config.composition import Composition, compose
from ablate.model.vit import patch_grid
from ablate.training.preflight import many_tokens

CHANNELS, CLASSES, SIDE = SIZES["vit"]["channels"], SIZES["vit"]["classes"], 6


def random_images():
    return normal(2, CHANNELS, SIDE, SIDE)


def random_vit(**changes):
    return random_parts(vit(**changes)).eval()


@pytest.mark.parametrize(("patch", "stride"), [(2, 1), (4, 2), (3, 3)])
def test_patches_are_read_row_by_row(patch, stride):
    model, images = random_vit(patch=patch, stride=stride), random_images()
    rows = range(0, SIDE - patch + 1, stride)
    weight, bias = model.patches.weight.flatten(1), model.patches.bias
    patches = [images[:, :, y : y + patch, x : x + patch] for y, x in product(rows, rows)]
    expected = [one.flatten(1) @ weight.T + bias for one in patches]
    assert_close(model.patches(images), torch.stack(expected, dim=1))
    assert patch_grid((SIDE, SIDE), patch, stride) == (len(rows), len(rows))
    assert model(images).shape == (2, CLASSES)


def test_images_need_not_be_square():
    model = vit(image_size=(4, 6), pos_enc="learned_2d").double()
    tables = model.stack.pos_enc.row_table, model.stack.pos_enc.column_table
    assert [len(table) for table in tables] == [*patch_grid((4, 6), 2, 2)] == [2, 3]
    assert model(normal(2, CHANNELS, 4, 6)).shape == (2, CLASSES)


@pytest.mark.parametrize("pos_enc", options("pos_enc"))
def test_positions_tell_where_a_patch_is(pos_enc):
    """The image's quarters change places; without positions that makes no difference."""
    model, images = random_vit(pos_enc=pos_enc), random_images()
    same = torch.allclose(model(images), model(images.roll(-2, 2)), atol=1e-9)
    # Rotary turns pairs by their distance alone, but an image's order still counts.
    assert same == (pos_enc == "none")


def test_the_class_token_starts_as_almost_nothing():
    model = vit()
    model.initialize(0)
    assert model.class_token.weight.std().item() == pytest.approx(1e-6, rel=0.5)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ("", "1,025 tokens (model.patch=2)|model.patch=4 (256 patches), or a smaller data.size"),
        ("model.stride=1", "3,970 tokens|model.patch=4 model.stride=null"),
        ("model.pool=mean data.size=67 model.patch=1", "4,489|memory; for fewer: a smaller"),
        ("data=cifar10 model.patch=1", "1,025 tokens|for fewer: model.patch=2 (256 patches)"),
        ("data=cifar10", ""),
        ("model.patch=4", ""),
    ],
)
def test_a_large_image_in_small_patches_is_said(keys, said):
    data = [] if "data=" in keys else ["data=image_folder", "data.root=x"]
    line = many_tokens(Composition(compose("model=vit", *data, *keys.split())))
    assert (line is None) == (said == "")
    assert [part for part in said.split("|") if part not in (line or "")] == []
