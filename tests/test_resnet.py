"""ResNet and its gates: timm's modules with the same weights, shapes, shortcuts."""

import pytest
import torch
from make_model import normal, options, part, random_parts, resnet
from timm.layers import SqueezeExcite
from timm.models.resnet import BasicBlock
from torch import nn
from torch.testing import assert_close

from ablate.model.resnet import ResidualBlock


def copy(pieces):
    with torch.no_grad():
        for ours, theirs in pieces:
            for name, parameter in theirs.named_parameters():
                parameter.copy_(ours.get_parameter(name).reshape(parameter.shape))


@pytest.mark.parametrize("gate", options("model.gate"))
@pytest.mark.parametrize(("inputs", "stride", "reduction"), [(6, 1, 2), (4, 2, 16)])
def test_a_block_is_timms(inputs, stride, reduction, gate):
    given = {"reduction": reduction} if gate == "se" else {}
    own = {"stride": stride, "norm": nn.BatchNorm2d, "gate": part("model.gate", gate, **given)}
    ours = random_parts(ResidualBlock(inputs, 6, residual=True, **own))
    conv, norm = nn.Conv2d(inputs, 6, 1, stride, bias=False), nn.BatchNorm2d(6)
    down = nn.Sequential(conv, norm) if stride == 2 else None
    theirs = BasicBlock(inputs, 6, stride, down)
    pieces = [(ours.inner[0], theirs.conv1), (ours.inner[1], theirs.bn1)]
    pieces += [(ours.inner[3], theirs.conv2), (ours.inner[4], theirs.bn2)]
    if down is not None:
        pieces += [(ours.shortcut[0], conv), (ours.shortcut[1], norm)]
    if gate == "se":
        theirs.se = SqueezeExcite(6, rd_channels=max(1, 6 // reduction))
        pieces += [(ours.gate.squeeze, theirs.se.fc1), (ours.gate.excite, theirs.se.fc2)]
    theirs = theirs.double()
    copy(pieces)
    x = normal(3, inputs, 8, 8)
    assert_close(ours(x), theirs(x))


def test_layers_and_widths():
    model = random_parts(resnet(depth=2))
    convs = [m for m in model.modules() if isinstance(m, nn.Conv2d) and m.kernel_size == (3, 3)]
    assert len(convs) == 6 * 2 + 1  # and the output map: 6 depth + 2
    assert [conv.out_channels for conv in convs] == [4] * 5 + [8] * 4 + [16] * 4
    assert [conv.stride[0] for conv in convs].count(2) == 2


def test_without_the_residual_there_is_no_shortcut():
    block, x = random_parts(resnet(residual=False)).blocks[1], normal(2, 4, 6, 6)
    assert_close(block(x), block.inner(x).relu())
    assert not list(block.shortcut.parameters())


def test_batch_norm_looks_at_the_other_images_in_training():
    images = normal(4, 2, 9, 9)
    for norm_type in ("batch", "layer"):
        model = random_parts(resnet(norm_type=norm_type))
        alone = torch.cat([model(image[None]) for image in images])
        assert torch.allclose(model(images), alone) == (norm_type == "layer")
