"""ResNet and its gates: timm's modules with the same weights, shapes, shortcuts."""

import pytest
import torch
from make_model import build, normal, options, part, random_parts
from timm.layers import SqueezeExcite
from timm.models.resnet import BasicBlock
from torch import nn
from torch.testing import assert_close

from ablate.model.gate.se import SqueezeExcitation
from ablate.model.resnet import ResidualBlock

SIZES = {"image_size": (9, 9), "channels": 2, "classes": 3}


def resnet(**changes):
    """The model of conf/model/resnet.yaml, tiny."""
    changes["gate"] = part("model.gate", changes.get("gate", "none"))
    model = build("resnet", **(SIZES | {"dim": 4} | changes))
    return random_parts(model)


@pytest.mark.parametrize(("channels", "reduction"), [(12, 4), (6, 1), (3, 8)])
def test_a_gate_is_timms(channels, reduction):
    gate = part("model.gate", "se", reduction=reduction)(channels)
    assert isinstance(gate, SqueezeExcitation)
    random_parts(gate)
    hidden = max(1, channels // reduction)
    theirs = SqueezeExcite(channels, rd_channels=hidden).double()
    with torch.no_grad():
        for ours, other in ((gate.squeeze, theirs.fc1), (gate.excite, theirs.fc2)):
            other.weight.copy_(ours.weight[:, :, None, None])
            other.bias.copy_(ours.bias)
    x = normal(2, channels, 5, 4)
    assert_close(gate(x), theirs(x))


@pytest.mark.parametrize("gate", options("model.gate"))
@pytest.mark.parametrize(("inputs", "stride"), [(6, 1), (4, 2)])
def test_a_block_is_timms(inputs, stride, gate):
    made = part("model.gate", gate)
    ours = random_parts(
        ResidualBlock(inputs, 6, stride=stride, norm=nn.BatchNorm2d, gate=made, residual=True)
    )
    down = (
        nn.Sequential(nn.Conv2d(inputs, 6, 1, stride, bias=False), nn.BatchNorm2d(6))
        if stride == 2
        else None
    )
    attend = SqueezeExcite if gate == "se" else None
    theirs = BasicBlock(inputs, 6, stride, down, attn_layer=attend)
    if gate == "se":
        theirs.se = SqueezeExcite(6, rd_channels=1)
    theirs = theirs.double()
    pieces = [(ours.inner[0], theirs.conv1), (ours.inner[1], theirs.bn1)]
    pieces += [(ours.inner[3], theirs.conv2), (ours.inner[4], theirs.bn2)]
    if down is not None:
        pieces += [(ours.shortcut[0], down[0]), (ours.shortcut[1], down[1])]
    if gate == "se":
        pieces += [(ours.gate.squeeze, theirs.se.fc1)]
        pieces += [(ours.gate.excite, theirs.se.fc2)]
    with torch.no_grad():
        for mine, other in pieces:
            for name, parameter in other.named_parameters():
                parameter.copy_(mine.get_parameter(name).reshape(parameter.shape))
    x = normal(3, inputs, 8, 8)
    assert_close(ours(x), theirs(x))


def test_layers_and_widths():
    model = resnet(depth=2)
    convs = [m for m in model.modules() if isinstance(m, nn.Conv2d) and m.kernel_size == (3, 3)]
    assert len(convs) == 6 * 2 + 1  # and the output map: 6 depth + 2
    assert [conv.out_channels for conv in convs] == [4] * 5 + [8] * 4 + [16] * 4
    assert [conv.stride[0] for conv in convs].count(2) == 2


def test_without_the_residual_there_is_no_shortcut():
    model = resnet(residual=False)
    block = model.blocks[1]
    x = normal(2, 4, 6, 6)
    assert_close(block(x), block.inner(x).relu())
    assert not list(block.shortcut.parameters())


def test_batch_norm_looks_at_the_other_images_in_training():
    images = normal(4, 2, 9, 9)
    for norm_type in ("batch", "layer"):
        model = resnet(norm_type=norm_type)
        alone = torch.cat([model(image[None]) for image in images])
        assert torch.allclose(model(images), alone) == (norm_type == "layer")
