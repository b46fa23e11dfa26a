"""docs/axes.md: what an option changes beside its name."""

import re
from collections import defaultdict
from itertools import combinations
from pathlib import Path

import pytest
import torch
from make_knobs import fitting, keys_of
from make_model import options
from test_knobs import KNOBS, START, Sizes
from test_rnn_knobs import KNOBS as RECURRENT
from torch import Tensor

from ablate.config.composition import compose
from ablate.training.build import build

PAGE = (Path(__file__).parents[1] / "docs" / "axes.md").read_text()
ELSEWHERE = {"model.cross_attention"}  # its options are those of model.attention
# Groups whose options are another question, machine or view, in one row each or none.
WHOLE = {"model", "data", "task", "optimizer", "schedule", "kernel", "trainer"}
UNSEEN = {"debug", "experiment", "hydra", "logger", "sweep"}


def rows() -> dict[str, list[str]]:
    """The first cell of every row, by the name that the paragraph above its table begins with."""
    found: dict[str, list[str]] = defaultdict(list)
    heading = ""
    for line in PAGE.splitlines():
        if row := re.match(r"\| ((?:`[\w.]+`(?:, )?)+) \|", line):
            found[heading] += re.findall(r"`([\w.]+)`", row[1])
        elif name := re.match(r"`([\w.]+)`|Switches|## Training", line):
            heading = name[1] or name[0]
    return found


def test_every_option_and_key_has_a_row() -> None:
    found = rows()
    groups = {path.name for path in (Path(__file__).parents[1] / "conf").iterdir() if path.is_dir()}
    assert set(found.pop("## Training")) == WHOLE
    keys = {key.removeprefix("model.").split(".")[-1] for key in model_keys()}
    assert set(found.pop("Switches")) == keys
    assert found.keys() == groups - WHOLE - UNSEEN - ELSEWHERE
    for group, names in found.items():
        assert sorted(names) == options(group), group


def model_keys() -> set[str]:
    """The keys of every model but timm's, without those of its parts."""
    found: set[str] = set()
    for model in {*KNOBS, *RECURRENT} - {"timm"}:
        cfg = compose(f"model={model}")
        parts = tuple(f"{group}." for group in cfg.choices if group.startswith("model."))
        parts += ("model.layers.",)  # keys that have a row already
        found |= {key for key in keys_of(cfg, "model") if not key.startswith(parts)}
    return found


def initial(model: str, *overrides: str) -> dict[str, Tensor]:
    network = build(compose(*START[model], *overrides), Sizes(model))  # type: ignore[arg-type]
    return {name: parameter.detach() for name, parameter in network.named_parameters()}


# Pairs of options that draw a parameter of one name and shape from two distributions.
REDRAWN = {
    ("model.attention", "additive", "gatv2"): {"v"},
    ("model.embedding", "learned", "word2vec"): {"weight"},
}
UNTIED = ["model.tie_embeddings=false"]
ALWAYS = {"model.embedding": UNTIED, "pos_enc": []}


@pytest.mark.parametrize(
    ("model", "group"),
    [
        *(("gpt", f"model.{slot}") for slot in ("attention", "ffn", "mask", "mixer", "norm_type")),
        *(("gpt", group) for group in ("model.embedding", "model.normalizer", "pos_enc")),
        ("vit", "pos_enc"),
        ("transformer", "model.cross_attention"),
        ("resnet", "model.gate"),
        ("resnet", "model.norm_type"),
        ("gat", "model.attention"),
    ],
)
def test_options_share_their_initial_values(model: str, group: str) -> None:
    """But for the pairs named above, which docs/axes.md tells apart."""
    always = ALWAYS.get(group, ["pos_enc=none"])
    found = {}
    for name in set(fitting(group, *START[model], *always)) - {"same"}:
        narrow = ["model.mask.size=3"] if name in ("window", "prefix") else []
        found[name] = initial(model, *always, f"{group}={name}", *narrow)
    assert len(found) > 1
    for one, other in combinations(sorted(found), 2):
        first, second = found[one], found[other]
        differ = {
            name.rpartition(".")[2]
            for name in first.keys() & second.keys()
            if first[name].shape == second[name].shape
            and not torch.equal(first[name], second[name])
        }
        where = "model.attention" if group == "model.cross_attention" else group
        assert differ == REDRAWN.get((where, one, other), set()), (one, other)


@pytest.mark.parametrize("model", ["gpt", "vit", "transformer", "transformer_forecaster"])
def test_positions_are_added_to_the_embeddings_and_never_scale_them(model: str) -> None:
    """The scale is that of the model, whatever its positions."""
    sides = {"transformer": ("encoder", "decoder")}.get(model, ("stack",))
    for name in fitting("pos_enc", *START[model]):
        network = build(compose(*START[model], f"pos_enc={name}"), Sizes(model))  # type: ignore[arg-type]
        for side in sides:
            pos = getattr(network, side).pos_enc
            x = torch.randn(2, pos.length, pos.dim)
            torch.testing.assert_close(pos.embed(x) - x, pos.embed(0 * x), atol=1e-5, rtol=1e-4)
            expected = pos.dim**0.5 if model == "transformer" else 1.0
            assert getattr(network, side).scale == expected, name
