"""Pretrained weights are loaded into a model that computes the same, or refused with a list."""

import re

import pytest
import timm
from make_model import SIZES, normal, random_parts
from omegaconf import OmegaConf
from timm.layers import LayerNorm, RmsNorm
from timm.models.vision_transformer import ResPostBlock, VisionTransformer
from torch.testing import assert_close

from ablate.config.composition import compose
from ablate.data import interface
from ablate.errors import UserError
from ablate.training.build import build
from ablate.training.pretrained import ANY, COMMON, NEUTRAL, require_parts
from ablate.training.transfer import parts_of

NAME = "vit_tiny_patch16_224"
SMALL = ["model=vit", "model.dim=12", "model.depth=2", "model.heads=3", "model.patch=2"]


class Sizes:
    """In place of data: what a model asks of it."""

    sizes = interface.Sizes(
        **{key: SIZES["vit"][key] for key in ("image_size", "channels", "classes")}
    )


def started(*overrides, name=NAME):
    """The model that starts from timm's weights, as it is built from a command line."""
    cfg = compose(*SMALL, *overrides, f"model.pretrained={name}")
    return build(cfg, Sizes()).double().eval()


def timms(**changes):
    """A small ViT of timm with random weights."""
    images = {"img_size": 6, "patch_size": 2, "in_chans": SIZES["vit"]["channels"]}
    width = {"num_classes": SIZES["vit"]["classes"], "embed_dim": 12, "depth": 2, "num_heads": 3}
    network = VisionTransformer(**(images | width | changes))
    return random_parts(network, seed=7, std=0.3).eval()


@pytest.fixture
def network(monkeypatch):
    """Say of what timm's network is made, instead of a download."""

    def choose(**changes):
        found = timms(**changes).float().eval()  # as it is downloaded

        def create(name, *, pretrained, in_chans):
            assert (name, pretrained, in_chans) == (NAME, True, SIZES["vit"]["channels"])
            return found

        monkeypatch.setattr(timm, "create_model", create)
        return found

    return choose


@pytest.mark.parametrize(
    ("changes", "overrides"),
    [
        ({}, []),
        ({"act_layer": "gelu_tanh"}, ["model.ffn=gelu_tanh"]),
        ({"norm_layer": lambda *a, **k: LayerNorm(*a, **k | {"eps": 0.1})}, ["model.norm_eps=0.1"]),
        ({"class_token": False, "global_pool": "avg", "fc_norm": False}, ["model.pool=mean"]),
        ({"mlp_ratio": 2}, ["model.ffn_dim=24", "model.dropout=0.5", "model.drop_path=0.1"]),
    ],
    ids=["plain", "gelu_tanh", "norm_eps", "mean", "ffn_dim"],
)
def test_outputs_equal_timms(changes, overrides, network):
    theirs = network(**changes)
    mine = started(*overrides)
    images = normal(2, SIZES["vit"]["channels"], *SIZES["vit"]["image_size"])
    found, expected = mine(images), theirs.double()(images)
    assert_close(found, expected, atol=1e-11, rtol=1e-11)
    found.square().sum().backward()
    expected.square().sum().backward()
    assert_close(mine.patches.weight.grad, theirs.patch_embed.proj.weight.grad)
    assert (mine.started_from["new"], mine.started_from["left"]) == ([], [])


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["model.norm_eps=0.1"], "model.norm_eps=1e-06"),
        (["model.mixer=convolution", "model.pool=mean"], "model.mixer=attention model.pool=class"),
    ],
    ids=str,
)
def test_other_parts_are_refused(overrides, says, network):
    network()
    line = f"model.pretrained={NAME} has a different architecture than this model: {says}"
    with pytest.raises(UserError, match=f"^{line}$"):
        started(*overrides)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"act_layer": "quick_gelu"}, "its activation is QuickGELU; known: GELU, "),
        ({"block_fn": ResPostBlock}, "is timm's ResPostBlock; only Block can be loaded"),
        ({"norm_layer": RmsNorm}, "has RmsNorm; LayerNorm can be read"),
        ({"global_pool": "max", "fc_norm": False}, "the pooling 'max' is not supported"),
        ({"img_size": (6, 24)}, "reads images or patches of 6 x 24"),
        ({"mlp_ratio": 2}, "shapes: "),
        ({"reg_tokens": 2}, "reg_token"),
    ],
    ids=str,
)
def test_another_network_is_refused(changes, says, network):
    network(**changes)
    with pytest.raises(UserError, match=rf"\A[^\n]*{re.escape(says)}[^\n]*\Z"):
        started()


def test_what_cannot_be_had_is_one_line(monkeypatch):
    with pytest.raises(UserError, match=r"vit_tinny_patch16_224 is not .*did you mean 'vit_tiny_p"):
        started(name="vit_tinny_patch16_224")

    def create(*args, **kwargs):
        raise OSError("no network\nat all")

    monkeypatch.setattr(timm, "create_model", create)
    with pytest.raises(UserError, match=rf"{NAME} could not be loaded: no network$"):
        started()


@pytest.mark.parametrize("family", ["gpt", "bert", "vit"])
def test_every_key_counts_but_those_that_are_free(family):
    cfg = compose(f"model={family}", "pos_enc=learned")
    theirs = {key: value for key, value in parts_of(cfg).items() if value is not None}
    require_parts(cfg, theirs, "this")
    for key in parts_of(cfg).keys() - ANY:
        with pytest.raises(UserError, match=f"^this has a different architecture than .*{key}="):
            require_parts(cfg, theirs | {key: "another"}, "this")


def test_a_key_that_is_added_later_must_change_nothing(monkeypatch):
    """Two keys and a part that no loader knows."""
    cfg = compose("model=gpt")
    theirs = COMMON | {key: value for key, value in parts_of(cfg).items() if value is not None}
    part = "ablate.model.whitening.{0}.Whitening"
    monkeypatch.setitem(NEUTRAL, "model.later", False)
    monkeypatch.setitem(NEUTRAL, "model.whitening", "none")
    added = {"model.init_scale": (None, 2, "null"), "model.later": (False, True, "false")}
    added["model.whitening._target_"] = (part.format("none"), part.format("rms"), "none")
    for key, (neutral, _, _) in added.items():
        OmegaConf.update(cfg, key, neutral, force_add=True)
    require_parts(cfg, theirs, "this")
    for key, (_, other, _) in added.items():
        OmegaConf.update(cfg, key, other)
    says = " ".join(f"{key.removesuffix('._target_')}={v[2]}" for key, v in added.items())
    with pytest.raises(UserError, match=f"has a different architecture than this model: {says}$"):
        require_parts(cfg, theirs, "this")
