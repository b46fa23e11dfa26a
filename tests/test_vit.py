"""ViT: timm's with copied weights, patches of every kind, and what does not fit is refused."""

from typing import Any

import pytest
import torch
from make_model import SIZES, normal, options, random_parts, scores, vit
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor
from torch.nn import functional as F

from ablate.errors import UserError
from ablate.model.pretrained.timm import translate
from ablate.model.vit import ViT, patch_grid
from ablate.training.transfer import load_into

CHANNELS, CLASSES, SIDE = SIZES["vit"]["channels"], SIZES["vit"]["classes"], 6


def random_images(count: int = 2, *, side: int = SIDE, seed: int = 1) -> Tensor:
    return normal(count, CHANNELS, side, side, seed=seed)


def timms(**changes: Any) -> VisionTransformer:
    """A small ViT of timm with random weights."""
    keys: dict[str, Any] = {
        "img_size": SIDE,
        "patch_size": 2,
        "in_chans": CHANNELS,
        "num_classes": CLASSES,
        "embed_dim": 12,
        "depth": 2,
        "num_heads": 3,
    }
    network = VisionTransformer(**(keys | changes))
    random_parts(network, seed=7, std=0.3)
    return network.eval()


def random_vit(**changes: Any) -> ViT:
    model = vit(**changes)
    random_parts(model)
    return model.eval()


def copy_timm(mine: ViT, theirs: VisionTransformer) -> None:
    what = "model.pretrained=small"
    load_into(mine, translate(theirs, mine.state_dict(), what), what, run="small")


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        *(({"kernel": kernel}, {}) for kernel in ("reference", "sdpa", "chunked")),
        ({"pool": "mean"}, {"class_token": False, "global_pool": "avg", "fc_norm": False}),
    ],
    ids=str,
)
def test_it_equals_timms_with_the_same_weights(
    ours: dict[str, Any], theirs: dict[str, Any]
) -> None:
    mine, other = random_vit(pos_enc="learned", **ours), timms(**theirs)
    copy_timm(mine, other)
    found, expected = mine(random_images()), other(random_images())
    torch.testing.assert_close(found, expected)
    found.square().sum().backward()
    expected.square().sum().backward()
    torch.testing.assert_close(mine.patches.weight.grad, other.patch_embed.proj.weight.grad)
    torch.testing.assert_close(mine.stack.pos_enc.table.grad, other.pos_embed.grad[0])


def test_a_head_for_other_classes_is_left_as_it_is() -> None:
    mine = random_vit(pos_enc="learned")
    head = mine.head.weight.detach().clone()
    copy_timm(mine, timms(num_classes=CLASSES + 2))
    assert torch.equal(mine.head.weight, head)
    copy_timm(mine, timms(num_classes=0))
    assert torch.equal(mine.head.weight, head)
    copy_timm(mine, timms())
    assert not torch.equal(mine.head.weight, head)


@pytest.mark.parametrize(
    ("ours", "theirs", "said"),
    [
        ({"dim": 24}, {}, r"shapes: .*patches\.weight"),
        ({"depth": 1}, {}, r"unknown: stack\.blocks\.1"),
        ({"patch": 2, "stride": 1}, {}, r"shapes: .*pos_enc"),
        ({"pool": "mean"}, {}, r"class_token"),
        ({}, {"qk_norm": True}, r"unknown: .*q_norm"),
        ({}, {"global_pool": "avg"}, r"fc_norm"),
    ],
    ids=str,
)
def test_weights_that_do_not_fit_are_refused(
    ours: dict[str, Any], theirs: dict[str, Any], said: str
) -> None:
    mine = random_vit(**({"pos_enc": "learned"} | ours))
    before = {name: value.clone() for name, value in mine.state_dict().items()}
    with pytest.raises(UserError, match=r"model\.pretrained=small does not fit") as caught:
        copy_timm(mine, timms(**theirs))
    assert "\n" not in str(caught.value)
    assert caught.match(said)
    assert all(torch.equal(before[name], value) for name, value in mine.state_dict().items())


@pytest.mark.parametrize(("patch", "stride"), [(2, 1), (4, 2), (3, 3)])
def test_patches_are_read_row_by_row(patch: int, stride: int) -> None:
    model = random_vit(patch=patch, stride=stride)
    images = random_images()
    rows = range(0, SIDE - patch + 1, stride)
    weight, bias = model.patches.weight.flatten(1), model.patches.bias
    expected = torch.stack(
        [
            images[:, :, y : y + patch, x : x + patch].flatten(1) @ weight.T + bias
            for y in rows
            for x in rows
        ],
        dim=1,
    )
    torch.testing.assert_close(model.patches(images), expected)
    assert patch_grid((SIDE, SIDE), patch, stride) == (len(rows), len(rows))
    assert model(images).shape == (2, CLASSES)


def test_images_need_not_be_square() -> None:
    model = vit(image_size=(4, 6), pos_enc="learned_2d").double()
    assert patch_grid((4, 6), 2, 2) == (2, 3)
    assert model.stack.pos_enc.row_table.shape == (2, 6)
    assert model.stack.pos_enc.column_table.shape == (3, 6)
    assert model(normal(2, CHANNELS, 4, 6)).shape == (2, CLASSES)


@pytest.mark.parametrize("pos_enc", options("pos_enc"))
def test_positions_tell_where_a_patch_is(pos_enc: str) -> None:
    """The image's quarters change places; without positions that makes no difference."""
    model = random_vit(pos_enc=pos_enc)
    images = random_images()
    moved = F.pad(images, (0, 0, 4, 0), mode="constant")[:, :, :SIDE]
    moved[:, :, :4] = images[:, :, 2:]
    moved[:, :, 4:] = images[:, :, :2]
    same = torch.allclose(model(images), model(moved), atol=1e-9)
    # Rotary turns pairs by their distance alone, but an image's order still counts.
    assert same == (pos_enc == "none")


@pytest.mark.parametrize("score", scores())
def test_every_score_reads_every_patch(score: str) -> None:
    model = random_vit(attention=score)
    images = random_images().requires_grad_()
    model(images).square().sum().backward()
    assert images.grad is not None
    assert images.grad.abs().min() > 0


def test_the_class_token_starts_as_almost_nothing() -> None:
    model = vit()
    model.initialise(0)
    assert model.class_token.weight.std().item() == pytest.approx(1e-6, rel=0.5)
