"""docs/reference/side-effects.md: what an option changes beside its name."""

import re
from collections import defaultdict
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import torch
from make_axes import AXES, MODELS
from make_knobs import keys_of
from make_model import options
from make_rows import base, composed, refusal

from ablate.config.tree import groups
from ablate.training.build import build, build_data

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "docs/reference/side-effects.md", *ROOT.glob("src/ablate/systems/*/README.md"))
ELSEWHERE = {"model.cross_attention"}  # its options are those of model.attention
# Groups whose options are another question, machine or view, in one row each or none.
WHOLE = {"model", "data", "task", "optimizer", "schedule", "kernel", "trainer"}
UNSEEN = {"callbacks", "debug", "experiment", "hydra", "logger", "sweep"}


def rows() -> dict[str, list[str]]:
    """The first cell of every row, by the name that the paragraph above its table begins with."""
    found: dict[str, list[str]] = defaultdict(list)
    heading = ""
    for line in "\n".join(page.read_text() for page in PAGES).splitlines():
        if row := re.match(r"\| ((?:`[\w.]+`(?:, )?)+) \|", line):
            found[heading] += re.findall(r"`([\w.]+)`", row[1])
        elif name := re.match(r"`([\w.]+)`|Switches|## Training", line):
            heading = name[1] or name[0]
        elif line.startswith("#"):
            heading = ""
    found.pop("", None)  # of metrics
    return found


@pytest.mark.ci
def test_every_option_and_key_has_a_row() -> None:
    found = rows()
    assert set(found.pop("## Training")) == WHOLE
    keys = {key.removeprefix("model.").split(".")[-1] for key in model_keys()}
    assert set(found.pop("Switches")) == keys
    assert found.keys() == groups() - WHOLE - UNSEEN - ELSEWHERE
    for group, names in found.items():
        assert sorted(names) == options(group), group


def model_keys() -> set[str]:
    """The keys of every model but timm's, without those of its parts."""
    found: set[str] = set()
    for model in MODELS.keys() - {"timm"}:
        parts = tuple(f"{group}." for group in base(model).choices if group.startswith("model."))
        parts += ("model.layers.",)  # keys that have a row already
        found |= {key for key in keys_of(base(model), "model") if not key.startswith(parts)}
    return found


# Pairs of options that draw a parameter of one name and shape from two distributions.
REDRAWN = {
    ("model.attention", "additive", "gatv2"): {"v"},
    ("model.embedding", "learned", "word2vec"): {"weight"},
}
ALWAYS: dict[str, Any] = {"model.embedding": {"model.tie_embeddings": False}, "pos_enc": {}}


@pytest.mark.ci
@pytest.mark.usefixtures("small_files")
@pytest.mark.parametrize(
    ("model", "group"),
    [
        *(("gpt", f"model.{slot}") for slot in ("attention", "ffn", "mixer", "norm_type")),
        *(("gpt", group) for group in ("model.embedding", "pos_enc")),
        ("vit", "pos_enc"),
        ("transformer", "model.cross_attention"),
        ("resnet", "model.gate"),
    ],
)
def test_options_share_their_initial_values(model: str, group: str) -> None:
    """But for the pairs named above, which docs/reference/side-effects.md tells apart."""
    found, data = {}, build_data(base(model))
    always = ALWAYS.get(group, {"pos_enc": "none"})
    for name in {*AXES[group]} - {"same"}:
        if refusal(model, row := always | {group: name}) is None:
            network = build(composed(model, row), data)
            found[name] = dict(network.named_parameters())
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
