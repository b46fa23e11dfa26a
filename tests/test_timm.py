"""timm's models as a reference arm: they are built for the data, train, or are refused."""

from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from make_data import make
from make_model import tiny
from refusals import refused
from safetensors.torch import save_file
from torch import nn

import ablate
from ablate.config.make import make_data
from ablate.config.run_id import run_id
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
    first.initialize(3)  # keeps what timm drew
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
    with refused(f"model.name={name} ", said):
        timm_model(name, **args)


def weights(path: Path, name: str = "resnet10t", **args: Any) -> dict[str, torch.Tensor]:
    state: dict[str, torch.Tensor] = timm.create_model(name, **args).state_dict()
    save_file(state, path) if path.suffix == ".safetensors" else torch.save(state, path)
    return state


def from_file(path: Path | str, name: str = "resnet10t", **args: Any) -> Timm:
    model: Timm = tiny("timm", name=name, pretrained=str(path), args=args)  # one channel, 3 classes
    return model


@pytest.mark.parametrize("file", ["w.pth", "w.safetensors"])
@pytest.mark.parametrize("classes", [3, 1000])
@pytest.mark.parametrize("channels", [1, 3])
def test_weights_of_a_file_are_loaded(
    tmp_path: Path, file: str, classes: int, channels: int
) -> None:
    state = weights(tmp_path / file, num_classes=classes, in_chans=channels)
    network = from_file(tmp_path / file).network.state_dict()
    first, head = "conv1.0.weight", ("fc.weight", "fc.bias")
    for name, value in state.items():
        if name == first and channels == 3:
            assert torch.allclose(network[name], value.sum(1, keepdim=True), atol=1e-5)
        elif name not in head or classes == 3:
            assert torch.equal(network[name], value), name


def test_a_file_that_does_not_fit_is_one_line(tmp_path: Path) -> None:
    weights(tmp_path / "other.pth", "resnet18")
    (tmp_path / "damaged.pth").write_bytes(b"no weights")
    wide = {"img_size": 8, "patch_size": 4, "depth": 1, "num_heads": 2}
    weights(tmp_path / "wide.pth", "vit_tiny_patch16_224", embed_dim=48, **wide)
    for name, line in {
        "othr.pth": "no such file; did you mean 'other.pth'?",
        "other.pth": "is of another model than resnet10t: ",
        "damaged.pth": "cannot be read as weights",
    }.items():
        with refused(f"model.pretrained={tmp_path / name}: ", line):
            from_file(tmp_path / name)
    with refused("is of another model than vit_tiny_patch16_224", "shape"):
        from_file(tmp_path / "wide.pth", "vit_tiny_patch16_224", **SMALL_VIT)
    with refused("model.args.checkpoint_path=x: use model.pretrained=FILE"):
        timm_model("resnet10t", checkpoint_path="x")


def test_the_content_of_the_file_counts_in_the_id_and_its_place_does_not(tmp_path: Path) -> None:
    def of(name: str) -> str:
        return run_id(ablate.compose("model=timm", f"model.pretrained={tmp_path / name}"), "x")

    weights(tmp_path / "w.pth")
    first = of("w.pth")
    (tmp_path / "w.pth").rename(tmp_path / "moved.pth")
    assert of("moved.pth") == first
    weights(tmp_path / "moved.pth")
    assert of("moved.pth") != first


@pytest.mark.parametrize(
    ("model", "mean", "std"),
    [
        ("model=timm model.name=resnet10t model.pretrained=FILE", 0.449, 0.226),
        ("model=timm model.name=vit_tiny_patch16_224 model.pretrained=true", 0.5, 0.5),
        ("model=vit model.pretrained=vit_tiny_patch16_224", 0.5, 0.5),
        ("model=timm", None, None),
        ("model=vit", None, None),
    ],
)
def test_images_are_normalised_as_pretrained_weights_expect(
    model: str, mean: float | None, std: float | None
) -> None:
    data: Any = make_data(ablate.compose(*model.split()))
    data.setup()
    if mean is None:
        own: Any = make("digits")
        own.setup()
        mean, std = float(own.mean), float(own.std)
    assert (float(data.mean), float(data.std)) == pytest.approx((mean, std), abs=1e-3)
