"""ViT: timm's with copied weights, patches of every kind, and what does not fit is refused."""

from typing import Any

import pytest
import torch
from make_model import SIZES, normal, options, part, random_parts, scores, vit
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


@pytest.mark.parametrize("kernel", ["reference", "sdpa", "chunked"])
def test_it_equals_timms_with_the_same_weights(kernel: str) -> None:
    mine, theirs = random_vit(pos_enc="learned", kernel=kernel), timms()
    copy_timm(mine, theirs)
    torch.testing.assert_close(mine(random_images()), theirs(random_images()))


def test_gradients_equal_timms() -> None:
    mine, theirs = random_vit(pos_enc="learned"), timms()
    copy_timm(mine, theirs)
    for model in (mine, theirs):
        model(random_images()).square().sum().backward()
    torch.testing.assert_close(mine.patches.weight.grad, theirs.patch_embed.proj.weight.grad)
    torch.testing.assert_close(mine.stack.pos_enc.table.grad, theirs.pos_embed.grad[0])


def test_mean_pooling_equals_timms() -> None:
    mine = random_vit(pos_enc="learned", pool="mean")
    theirs = timms(class_token=False, global_pool="avg", fc_norm=False)
    copy_timm(mine, theirs)
    torch.testing.assert_close(mine(random_images()), theirs(random_images()))


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
        ({"depth": 3}, {}, r"missing: stack\.blocks\.2"),
        ({"patch": 3}, {}, r"shapes: "),
        ({"patch": 2, "stride": 1}, {}, r"shapes: .*pos_enc"),
        ({"pool": "mean"}, {}, r"class_token"),
        ({"norm": "post"}, {}, r"missing: .*norm_after"),
        ({"pos_enc": "none"}, {}, r"unknown: stack\.pos_enc\.table"),
        ({"share_layers": True}, {}, r"unknown: stack\.blocks\.1"),
        ({}, {"qk_norm": True}, r"unknown: .*q_norm"),
        ({}, {"reg_tokens": 2}, r"unknown: reg_token"),
        ({}, {"init_values": 0.1}, r"unknown: .*ls1"),
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


# Patches


@pytest.mark.parametrize(("patch", "stride"), [(2, 2), (2, 1), (4, 2), (3, 3), (6, 6), (1, 1)])
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


def test_the_stride_is_the_patch_unless_set() -> None:
    assert vit(patch=3).patches.stride == (3, 3)


@pytest.mark.parametrize(("patch", "stride"), [(4, 4), (4, 3), (7, 7), (5, 2)])
def test_patches_that_leave_pixels_out_are_refused(patch: int, stride: int) -> None:
    with pytest.raises(UserError, match=rf"model.patch={patch} with stride {stride} does not"):
        vit(patch=patch, stride=stride)


def test_images_need_not_be_square() -> None:
    model = vit(image_size=(4, 6), pos_enc="learned_2d").double()
    assert patch_grid((4, 6), 2, 2) == (2, 3)
    assert model.stack.pos_enc.row_table.shape == (2, 6)
    assert model.stack.pos_enc.column_table.shape == (3, 6)
    assert model(normal(2, CHANNELS, 4, 6)).shape == (2, CLASSES)


# Pooling


def test_mean_pooling_has_no_class_token() -> None:
    model = random_vit(pool="mean", pos_enc="learned")
    assert not [name for name, _ in model.named_parameters() if "class_token" in name]
    expected = model.head(model.stack(model.patches(random_images())).mean(1))
    torch.testing.assert_close(model(random_images()), expected)


def test_the_class_token_stands_first() -> None:
    model = random_vit(pos_enc="learned")
    patches = model.patches(random_images())
    first = model.class_token.weight.expand(2, 1, -1)
    expected = model.head(model.stack(torch.cat([first, patches], 1))[:, 0])
    torch.testing.assert_close(model(random_images()), expected)
    assert model.stack.pos_enc.table.shape[0] == 1 + 9


@pytest.mark.parametrize("pool", ["class", "mean"])
@pytest.mark.parametrize("pos_enc", options("pos_enc"))
def test_positions_tell_where_a_patch_is(pos_enc: str, pool: str) -> None:
    """The image's quarters change places; without positions that makes no difference."""
    model = random_vit(pos_enc=pos_enc, pool=pool)
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


def test_it_looks_both_ways() -> None:
    assert not vit().stack.causal
    assert vit(mask=part("model.mask", "window", size=2)).stack.look_ahead


def test_evaluation_twice_is_equal() -> None:
    model = random_vit(dropout=0.5, drop_path=0.5)
    assert torch.equal(model(random_images()), model(random_images()))
    model.train()
    assert not torch.allclose(model(random_images()), model(random_images()))


def test_a_image_does_not_depend_on_its_batch() -> None:
    model = random_vit(norm_type="batch", pos_enc="relative")
    torch.testing.assert_close(model(random_images(3))[1:2], model(random_images(3)[1:2]))


def test_initial_values() -> None:
    first, second = vit(pos_enc="learned"), vit(pos_enc="learned", attention="cosine")
    for model in (first, second):
        model.initialise(0)
    assert first.class_token.weight.std().item() == pytest.approx(1e-6, rel=0.5)
    for (name, value), (_, other) in zip(
        first.named_parameters(),
        ((n, p) for n, p in second.named_parameters() if "log_t" not in n),
        strict=True,
    ):
        assert torch.equal(value, other), name
