"""Every pair of options of any two axes: trained for two steps, or refused, and why.

For each model a covering array is made: a row sets many axes at once and stands for all of its
pairs. What is refused in a row is taken out of it, by the axes that the refusal names; a pair
that is still refused alone, whatever the axes it was refused for are set to, is written down with
its reason. In the end every pair is in one of the two books, and the second holds what it should.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import chain, combinations, product
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml
from accepted import ONLY
from make_axes import EVERY_AXIS, GROUPS, MODELS
from make_model import options
from make_rows import axes_of, base, base_overrides, changes, composed, refusal, train, written
from make_rules import rules_of_keys
from make_systems import rows_of_systems
from omegaconf import OmegaConf

from ablate.config.composition import compose
from ablate.config.rules import BOOL, OneOf
from ablate.config.schema import ruled
from ablate.kernel import chunked

# What is logged is the same in every process already.
pytestmark = pytest.mark.filterwarnings("ignore:.*sync_dist:UserWarning")


@pytest.fixture(autouse=True, scope="module")
def _machine(small_files: pytest.MonkeyPatch) -> None:
    """No GPU, and no compiler, which test_kernel.py uses."""
    small_files.setattr(torch.cuda, "device_count", lambda: 0)
    small_files.setattr(torch.backends, "mps", SimpleNamespace(is_available=lambda: False))
    small_files.setattr(chunked, "compiler", lambda device: False)
    small_files.delenv("TRITON_INTERPRET", raising=False)


Choice = tuple[str, Any]  # an axis and its option
Pair = frozenset[Choice]


@dataclass
class Books:
    """What became of every pair of a model's axes."""

    trained: set[Pair] = field(default_factory=set)
    refused: dict[Pair, str] = field(default_factory=dict)
    alone: dict[Choice, str] = field(default_factory=dict)  # refused with everything


def named(reason: str, axes: Iterable[str]) -> list[str]:
    """The axes that a refusal names: with a value, or as a key that an option lacks."""
    return [
        axis
        for axis in axes
        if re.search(rf"\b{re.escape(axis)}=|no key {re.escape(axis)} ", reason)
    ]


def accepted(
    model: str, wanted: dict[str, Any], axes: dict[str, list[Any]], changes: int = 2
) -> dict[str, Any] | str:
    """A row with the wanted choices that is accepted, or why there is none.

    Where the base's own values of other axes are in the way, so many of those axes are changed.
    """
    reason = refusal(model, wanted)
    if reason is None:
        return wanted
    for axis in named(reason, axes) if changes else []:
        if axis in wanted:
            continue
        for other in axes[axis]:
            found = accepted(model, wanted | {axis: other}, axes, changes - 1)
            if not isinstance(found, str):
                return found
    return reason


def fill(model: str, wanted: dict[str, Any], open_pairs: set[Pair]) -> dict[str, Any]:
    """The row with options for the other axes that close as many open pairs as possible."""
    row, axes = dict(wanted), axes_of(model)

    def useful(axis: str) -> list[Any]:
        """The options that close open pairs together with the row, the most useful first."""
        closed = {
            n: sum(frozenset({(axis, choice), item}) in open_pairs for item in row.items())
            for n, choice in enumerate(axes[axis])
        }
        return [axes[axis][n] for n in sorted(closed, key=lambda n: -closed[n]) if closed[n]]

    for axis in axes:
        if axis not in row and (best := useful(axis)):
            row[axis] = best[0]
    taken_out: list[str] = []
    while (reason := refusal(model, row)) is not None:
        in_the_way = [axis for axis in named(reason, axes) if axis in row and axis not in wanted]
        assert in_the_way, reason  # a refusal names what to change
        row = {axis: chosen for axis, chosen in row.items() if axis not in in_the_way}
        taken_out += in_the_way
    for axis in taken_out:
        for choice in useful(axis):
            if refusal(model, row | {axis: choice}) is None:
                row[axis] = choice
                break
    return row


def all_pairs(axes: dict[str, list[Any]]) -> list[Pair]:
    return [
        frozenset({(a, x), (b, y)})
        for a, b in combinations(axes, 2)
        for x, y in product(axes[a], axes[b])
    ]


def books(model: str) -> Books:
    """Train or refuse every pair of the model's axes."""
    kept, axes = Books(), axes_of(model)
    for axis, choices in axes.items():
        for choice in choices:
            found = accepted(model, {axis: choice}, axes)
            if isinstance(found, str):
                kept.alone[axis, choice] = found
    everything = all_pairs(axes)
    for pair in everything:
        if blamed := [kept.alone[item] for item in pair if item in kept.alone]:
            kept.refused[pair] = blamed[0]
    open_pairs = set(everything) - kept.refused.keys()
    usable = {
        axis: [choice for choice in choices if (axis, choice) not in kept.alone]
        for axis, choices in axes.items()
    }
    for pair in everything:
        if pair not in open_pairs:
            continue
        found = accepted(model, dict(sorted(pair)), usable)
        if isinstance(found, str):
            kept.refused[pair] = found
            open_pairs.remove(pair)
            continue
        row = fill(model, found, open_pairs)
        assert pair <= set(row.items())
        try:
            train(model, row)
        except Exception as error:
            error.add_note(f"model={model} with {row}")
            raise
        closed = {frozenset(pair) for pair in combinations(row.items(), 2)}
        kept.trained |= closed
        open_pairs -= closed
    return kept


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
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
    assert not any("\n" in reason for reason in kept.refused.values())
    for (axis, _), reason in kept.alone.items():
        assert named(reason, [axis])
    for pair, reason in kept.refused.items():
        if any(item in kept.alone for item in pair):
            continue
        # One alone where a third axis comes between, as task=recall, which data=recall wants.
        assert named(reason, [axis for axis, _ in pair]), (pair, reason)
        for key, value in re.findall(r"(?:use|set) ([\w.]+)=([\w.]+)", reason)[:1]:
            if key in axes:
                changed = dict(pair) | {key: yaml.safe_load(value)}
                assert refusal(model, changed) != reason, (pair, reason)


# Switches that are no axis here, and why.
NO_AXIS = {
    "model.pretrained": "weights are downloaded: test_vit.py, test_timm.py",
    "trainer.accelerator": "goes with the option of `trainer`",
    "trainer.strategy": "goes with the option of `trainer`",
    "trainer.deterministic": "changes no number: docs/explanation/negative-results.md",
    **rows_of_systems("NO_AXIS"),
}


@pytest.mark.ci
@pytest.mark.parametrize("model", MODELS)
def test_every_group_and_switch_of_a_model_is_an_axis(model: str) -> None:
    """A switch is true or false, or one of some names, in the model, its data, task and trainer;
    those of an option, as of model.mixer, are in test_knobs.py."""
    axes = axes_of(model)
    groups = set(base(model).choices) - {
        "model",
        "experiment",
        "sweep",
        "logger",
        "callbacks",
        "debug",
    }
    assert groups == axes.keys() & {*GROUPS}
    assert ONLY[model].keys() <= axes.keys()
    own = [base(model)] + [
        composed(model, {group: name}) for group in ("data", "task") for name in ONLY[model][group]
    ]
    switches = {
        path
        for cfg in own
        for path, _, rule in ruled(cfg)
        if path.split(".")[0] in ("model", "data", "task", "trainer") and isinstance(rule, OneOf)
    }
    of_options = {path for path in switches if path.rpartition(".")[0] in GROUPS}
    assert switches - of_options - NO_AXIS.keys() <= axes.keys()


@pytest.mark.ci
def test_between_them_the_models_have_every_axis() -> None:
    assert set(MODELS) == set(options("model")) == set(ONLY)
    assert set().union(*(axes_of(model) for model in MODELS)) == set(EVERY_AXIS)


def test_the_axes_hold_every_value_that_is_allowed() -> None:
    for axis, choices in EVERY_AXIS.items():
        rules = rules_of_keys().get(axis, set())
        names = [rule.options for rule in rules if isinstance(rule, OneOf)]
        if names and len(names) == len(rules):
            assert set(choices) == set(chain(*names))
        if BOOL in rules:
            assert set(choices) == {True, False}


@pytest.mark.ci
@pytest.mark.parametrize(
    ("model", "row"),
    [
        ("gpt", {"model.attention": "additive", "pos_enc": "rotary", "model.norm": "post"}),
        ("vit", {"trainer.precision": "bf16-true", "trainer": "gpu", "data": "mnist"}),
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
