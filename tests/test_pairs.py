"""Every pair of options of any two axes trains two steps with a finite loss, or is refused."""

import re
from collections.abc import Iterator
from itertools import chain
from types import SimpleNamespace
from typing import Any

import make_files
import pytest
import torch
import yaml
from accepted import ONLY
from make_axes import EVERY_AXIS, EVERY_MODEL, GROUPS, MODELS
from make_model import CONF, options
from make_pairs import all_pairs, books
from make_rows import axes_of, base, base_overrides, changes, composed, refusal, written
from make_rules import rules_of_keys
from omegaconf import OmegaConf

from ablate.config.check import ruled
from ablate.config.composition import compose
from ablate.config.rules import Bool, OneOf
from ablate.errors import UserError
from ablate.kernel import chunked

# What is logged is the same in every process already.
pytestmark = pytest.mark.filterwarnings("ignore:.*sync_dist:UserWarning")


@pytest.fixture(autouse=True, scope="module")
def _machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Small files in the working folder, no GPU, and no compiler, which test_kernel.py uses."""
    with pytest.MonkeyPatch.context() as patch:
        make_files.write(tmp_path_factory.mktemp("data"), patch)
        patch.setattr(torch.cuda, "device_count", lambda: 0)
        patch.setattr(torch.backends, "mps", SimpleNamespace(is_available=lambda: False))
        patch.setattr(chunked, "compiler", lambda device: False)
        patch.delenv("TRITON_INTERPRET", raising=False)
        yield


@pytest.mark.parametrize("model", EVERY_MODEL)
def test_every_pair_trains_or_is_refused(model: str) -> None:
    kept, axes = books(model), axes_of(model)
    assert kept.trained.isdisjoint(kept.refused)
    assert kept.trained | kept.refused.keys() == set(all_pairs(axes))
    assert set(kept.alone) == {
        (axis, choice)
        for axis, allowed in ONLY[model].items()
        for choice in axes[axis]
        if choice not in allowed
    }


@pytest.mark.parametrize("model", EVERY_MODEL)
def test_every_refusal_names_what_to_change(model: str) -> None:
    kept = books(model)
    assert not any("\n" in reason for reason in kept.refused.values())
    for (axis, _), reason in kept.alone.items():
        assert f"{axis}=" in reason
    for pair, reason in kept.refused.items():
        if any(item in kept.alone for item in pair):
            continue
        # One alone where a third axis comes between, as task=recall, which data=recall wants.
        assert any(f"{axis}=" in reason for axis, _ in pair), (pair, reason)
        for key, value in re.findall(r"(?:use|set) ([\w.]+)=([\w.]+)", reason)[:1]:
            if key in axes_of(model):
                changed = dict(pair) | {key: yaml.safe_load(value)}
                assert refusal(model, changed) != reason, (pair, reason)


@pytest.mark.parametrize("model", EVERY_MODEL)
def test_an_axis_that_a_model_lacks_cannot_be_set_on_it(model: str) -> None:
    for axis in EVERY_AXIS.keys() - axes_of(model).keys():
        with pytest.raises(UserError) as caught:
            compose(f"model={model}", f"{axis}={written(EVERY_AXIS[axis][-1])}")
        assert axis in str(caught.value)
        assert "\n" not in str(caught.value)


def test_every_model_is_there() -> None:
    assert set(MODELS) == set(options("model")) == set(ONLY)


@pytest.mark.parametrize("model", MODELS)
def test_what_is_said_of_an_axis_is_said_of_one_that_the_model_has(model: str) -> None:
    assert ONLY[model].keys() <= axes_of(model).keys()


def test_between_them_the_models_have_every_axis() -> None:
    assert set().union(*(axes_of(model) for model in MODELS)) == set(EVERY_AXIS)


@pytest.mark.parametrize("model", MODELS)
def test_every_group_is_an_axis(model: str) -> None:
    groups = set(base(model).choices) - {"model", "experiment", "sweep", "logger", "debug"}
    assert groups == {axis for axis in axes_of(model) if axis in GROUPS}


# Switches that are no axis here, and why.
NO_AXIS = {
    "model.pretrained": "weights are downloaded: test_vit.py, test_timm.py",
    "data.name": "graphs in files of one kind: test_graph.py",
    "data.direction": "test_speech.py",
    "data.texts": "test_speech.py",
    "task.algorithm": "needs the run of a reward model: test_rlhf.py",
    "trainer.accelerator": "goes with the option of `trainer`",
    "trainer.strategy": "goes with the option of `trainer`",
    "trainer.deterministic": "changes no number: docs/decisions.md",
}


@pytest.mark.parametrize("model", MODELS)
def test_every_switch_is_an_axis(model: str) -> None:
    """What is true or false, or one of some names, in the model, its data, task and trainer."""
    own = [base(model)] + [
        composed(model, {group: name}) for group in ("data", "task") for name in ONLY[model][group]
    ]
    switches = {
        path
        for cfg in own
        for path, _, rule in ruled(cfg)
        if path.split(".")[0] in ("model", "data", "task", "trainer")
        and isinstance(rule, Bool | OneOf)
    }
    assert switches - NO_AXIS.keys() <= axes_of(model).keys()


def test_the_axes_hold_every_value_that_is_allowed() -> None:
    for axis, choices in EVERY_AXIS.items():
        rules = rules_of_keys().get(axis, set())
        names = [rule.options for rule in rules if isinstance(rule, OneOf)]
        if names and len(names) == len(rules):
            assert set(choices) == set(chain(*names))
        if Bool() in rules:
            assert set(choices) == {True, False}


@pytest.mark.parametrize(
    ("model", "row"),
    [
        ("gpt", {"model.attention": "additive", "pos_enc": "rotary", "model.norm": "post"}),
        ("gpt", {"task": "recall", "data": "recall", "trainer": "ddp"}),
        ("vit", {"trainer.precision": "bf16-true", "trainer": "gpu", "data": "mnist"}),
        ("transformer", {"model.cross_attention": "additive", "data": "parallel"}),
        ("transformer", {"model.mask": "window", "model.encoder.depth": 1}),
        ("rnn_seq2seq", {"model.window": "local_p", "data": "copy", "model.decoder": "bahdanau"}),
    ],
)
def test_rows_are_what_hydra_composes(model: str, row: dict[str, Any]) -> None:
    mine = composed(model, row)
    small = [
        f"{axis}.{key}={written(value)}"
        for axis, name in row.items()
        if axis in GROUPS
        for key, value in changes(axis, name).items()
        if key in list(OmegaConf.select(mine, axis))
    ]
    own = [it for it in base_overrides(model) if it.split(".")[0] not in row]
    theirs = compose(*own, *(f"{axis}={written(it)}" for axis, it in row.items()), *small)
    assert OmegaConf.to_container(mine) == OmegaConf.to_container(theirs)


def test_the_list_of_groups_is_that_of_conf() -> None:
    assert all((CONF / group).is_dir() for group in GROUPS)
