"""Figures: the right files, and in them what the model attends to."""

import csv
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from matplotlib.colors import to_hex
from torch.testing import assert_close

import ablate
from ablate.build import build, build_data
from ablate.data import Data
from ablate.errors import UserError
from ablate.figures import (
    HIDDEN,
    attention_figures,
    attention_maps,
    draw_curves,
    draw_patches,
    draw_tokens,
    picture,
    spread,
)
from ablate.model.init import Model
from ablate.model.vit import PatchEmbedding


def built(*overrides: str) -> tuple[Model, Data]:
    cfg = ablate.compose(*overrides)
    data = build_data(cfg)
    return build(cfg, data), data


@pytest.fixture
def gpt(tmp_path: Path) -> tuple[Model, Data]:
    return built(*tiny.overrides(tmp_path, "model.depth=2"))


def pixels(path: Path) -> torch.Tensor:
    """y x c, of a PNG."""
    from matplotlib.image import imread

    return torch.from_numpy(imread(path).copy())


def drawn(path: Path) -> bool:
    """A PNG of some size with several colours in it."""
    image = pixels(path)
    return min(image.shape[:2]) > 200 and len(image.flatten(0, 1)[::7].unique(dim=0)) > 10


def test_one_png_for_each_layer(gpt: tuple[Model, Data], tmp_path: Path) -> None:
    paths = attention_figures(*gpt, tmp_path / "maps")
    assert [path.name for path in paths] == ["attention_layer_01.png", "attention_layer_02.png"]
    assert all(drawn(path) for path in paths)
    assert sorted(path.name for path in (tmp_path / "maps").iterdir()) == [p.name for p in paths]


def test_drawing_changes_nothing(gpt: tuple[Model, Data], tmp_path: Path) -> None:
    model, data = gpt
    model.train()
    tokens = data.example()["tokens"]
    torch.manual_seed(0)
    before = model(tokens)
    attention_figures(model, data, tmp_path)
    torch.manual_seed(0)
    assert model.training
    assert_close(model(tokens), before, rtol=0, atol=0)


def test_maps_are_weights(gpt: tuple[Model, Data]) -> None:
    model, data = gpt
    maps = attention_maps(model, data.example()["tokens"])
    assert len(maps) == 2
    for weights, mask in maps:
        place = torch.arange(16)
        assert weights.shape == (2, 16, 16)
        assert_close(weights.sum(-1), torch.ones(2, 16))
        assert not weights[:, ~mask.allowed(place, place)].any()


def test_shared_layer_is_drawn_each_time_it_is_applied(tmp_path: Path) -> None:
    model, data = built(*tiny.overrides(tmp_path, "model.depth=3", "model.share_layers=true"))
    assert len(attention_figures(model, data, tmp_path / "maps")) == 3


def test_chosen_layer_and_head(gpt: tuple[Model, Data], tmp_path: Path) -> None:
    (path,) = attention_figures(*gpt, tmp_path / "one", layer=2, head=1)
    assert path.name == "attention_layer_02.png"
    every = attention_figures(*gpt, tmp_path / "all", layer=2)
    assert pixels(every[0]).shape[1] > pixels(path).shape[1]
    for wrong in ({"layer": 3}, {"head": 0}):
        with pytest.raises(UserError, match="1 to 2"):
            attention_figures(*gpt, tmp_path, **wrong)


def test_tokens_are_named_and_the_masked_is_grey() -> None:
    labels = ["␣", "$a$", "\\frac", "語"]
    allowed = torch.ones(4, 4).tril().bool()
    weights = allowed / allowed.sum(-1, keepdim=True)
    figure = draw_tokens({"layer 1 head 1": weights}, labels, allowed, "layer 1 of 1", 1.0)
    axis = figure.axes[0]
    assert axis.get_title() == "layer 1 head 1"
    assert [t.get_text() for t in axis.get_xticklabels()] == labels
    assert [t.get_text() for t in axis.get_yticklabels()] == labels
    assert "key" in axis.get_xlabel()
    assert "query" in axis.get_ylabel()
    # Row 1: two weights of one half, then two cells behind the mask.
    shown = axis.images[0].get_array()
    assert shown.mask.tolist() == (~allowed).tolist()
    assert shown[1, 0] == 0.5
    assert to_hex(axis.get_facecolor()) == HIDDEN


def test_long_texts_name_every_nth_token() -> None:
    weights, allowed = torch.full((200, 200), 1 / 200), torch.ones(200, 200).bool()
    labels = [f"t{n}" for n in range(200)]
    axis = draw_tokens({"head": weights}, labels, allowed, "", 1.0).axes[0]
    names = [t.get_text() for t in axis.get_xticklabels()]
    assert len(names) <= 64
    assert names[:2] == ["0 t0", "4 t4"]


VIT = ("model=vit", "model.depth=2", "model.dim=16")


@pytest.mark.parametrize(
    "overrides", [(), ("model.pool=mean",), ("model.patch=4", "model.stride=2")]
)
def test_vit(overrides: tuple[str, ...], tmp_path: Path) -> None:
    paths = attention_figures(*built(*VIT, *overrides), tmp_path)
    assert len(paths) == 2
    assert all(drawn(path) for path in paths)


def test_models_without_our_attention_have_no_maps(tmp_path: Path) -> None:
    model, data = built("model=timm", "model.name=resnet10t")
    assert attention_figures(model, data, tmp_path) == []


def test_patches_go_back_to_their_place() -> None:
    patches = PatchEmbedding(1, 4, 2, 2)
    weights = torch.arange(6.0)
    expected = weights.view(2, 3).repeat_interleave(2, 0).repeat_interleave(2, 1)
    assert_close(spread(weights, patches, 4, 6), expected)


def test_overlapping_patches_are_averaged() -> None:
    # One row of three pixels' height: patches over columns 0-2 and 1-3 of a 3 x 4 picture.
    heat = spread(torch.tensor([1.0, 3.0]), PatchEmbedding(1, 4, 3, 1), 3, 4)
    assert_close(heat, torch.tensor([1.0, 2.0, 2.0, 3.0]).expand(3, 4))


def test_a_head_that_sees_one_patch_lights_it_alone() -> None:
    weights = torch.zeros(4)
    weights[2] = 1.0
    image = torch.zeros(4, 4, 3)
    figure = draw_patches({"head 1": weights}, image, PatchEmbedding(1, 4, 2, 2), "title", 1.0)
    heat = torch.tensor(figure.axes[1].images[0].get_array())
    assert heat[2:, :2].eq(1).all()
    assert heat.sum() == 4


def test_the_picture_is_what_a_person_sees() -> None:
    from sklearn.datasets import load_digits

    _, data = built(*VIT)
    shown: Any = picture(data, data.example()["images"][0])  # type: ignore[arg-type]
    originals = torch.from_numpy(load_digits().images).float() / 16
    distance = (originals - shown[..., 0]).abs().amax((1, 2))
    assert distance.min() < 1e-5


def test_curves(tmp_path: Path) -> None:
    with open(tmp_path / "metrics.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, ["step", "train/loss", "val/loss"])
        writer.writeheader()
        writer.writerows([{"step": n, "train/loss": 3 / n} for n in range(1, 9)])
        writer.writerow({"step": 8, "val/loss": 1.0})
    assert drawn(draw_curves(tmp_path / "metrics.csv", tmp_path / "figures" / "curves.png"))
