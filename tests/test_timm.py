"""timm's models as a reference arm: they are built for the data, train, or are refused."""

from typing import Any

import pytest
import torch
from make_model import tiny
from torch import nn

from ablate.errors import UserError
from ablate.model.timm import Timm

SMALL_VIT = {"img_size": 8, "patch_size": 4, "embed_dim": 24, "depth": 1, "num_heads": 2}


def timm_model(name: str, **args: Any) -> Timm:
    model: Timm = tiny("timm", name=name, args=args)
    return model


@pytest.mark.parametrize(
    ("name", "args", "device"),
    [
        ("resnet10t", {}, "cpu"),
        ("resnet10t", {}, "meta"),  # where flops.py counts operations; earlier ViTs of timm cannot
        ("vit_tiny_patch16_224", SMALL_VIT, "cpu"),
    ],
)
def test_it_has_an_output_for_each_class(name: str, args: dict[str, Any], device: str) -> None:
    with torch.device(device):
        assert timm_model(name, **args)(torch.zeros(2, 1, 8, 8)).shape == (2, 3)


def test_building_draws_nothing_but_its_own_values() -> None:
    """The look at one image leaves running averages and the random state alone."""
    torch.manual_seed(0)
    first = timm_model("resnet10t")
    for module in first.modules():
        if isinstance(module, nn.BatchNorm2d):
            assert torch.equal(module.running_mean, torch.zeros_like(module.running_mean))
    assert all(module.training for module in first.modules())
    torch.manual_seed(0)
    bare = torch.nn.ModuleList([timm_model("resnet10t")])
    for mine, again in zip(first.parameters(), bare.parameters(), strict=True):
        assert torch.equal(mine, again)
    state = [parameter.clone() for parameter in first.parameters()]
    first.initialise(3)  # keeps what timm drew
    assert all(torch.equal(a, b) for a, b in zip(state, first.parameters(), strict=True))


@pytest.mark.parametrize(
    ("name", "args", "said"),
    [
        ("resnet18x", {}, "did you mean 'resnet18"),
        ("resnet10t", {"nonsense": 1}, "nonsense"),
        ("vit_tiny_patch16_224", {}, "224"),  # asserts in forward
        ("vit_tiny_patch16_224", {"img_size": 8}, "Kernel size"),  # fails in forward
    ],
    ids=str,
)
def test_what_does_not_fit_is_one_line_before_training(
    name: str, args: dict[str, Any], said: str
) -> None:
    with pytest.raises(UserError, match=rf"model.name={name} ") as caught:
        timm_model(name, **args)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
