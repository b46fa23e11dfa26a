"""Every key of a composed model and of its parts changes what is computed or learned."""

from contextlib import suppress
from typing import Any

import pytest
import torch
from make_axes import GROUPS, MODELS
from make_knobs import MEANINGLESS, other
from make_model import kernels, options
from make_rows import axes_of, base, base_overrides, composed, refusal, written
from make_systems import list_of_systems
from test_no_effect import after_two_steps, without

from ablate.config.composition import compose
from ablate.config.keys import option_content
from ablate.config.overrides import ALIASES
from ablate.config.schema import ruled
from ablate.config.tree import config_dir
from ablate.errors import UserError
from ablate.kernel import chunked

Row = dict[str, Any]
# Where the first other value is refused, or changes nothing in so small a model.
OTHERS = {
    "model.name": "test_resnet",
    "model.args": {"stem_width": 8},
    "model.attention.max_length": 40,
    "model.cross_attention.max_length": 40,
    "model.connection.factor": 0.3,
    "model.connection.initial": 0.3,
    "model.mixer.rank": 5,
    "model.mixer.rotary_dim": 4,
    "pos_enc.randomize": 300,
    "pos_enc.share": 0.7,
}
# Beside which the keys of an option act in so small a model.
BESIDE: dict[str, Row] = {
    "latent": {"pos_enc": "rotary"},
    "rotary": {"pos_enc.scaling": "yarn"},
    "t5": {"pos_enc.buckets": 4},
}
# test_pretrained.py, test_activation_checkpoints.py, test_transformer.py, test_mup.py
ELSEWHERE = {
    *("model.pretrained", "model.activation_checkpointing", "model.share_embeddings"),
    *("model.base_dim", "model.base_heads", "model.base_depth"),
}


@pytest.fixture(autouse=True, scope="module")
def _no_compiler(small_files: pytest.MonkeyPatch) -> None:
    small_files.setattr(chunked, "compiler", lambda device: False)  # test_kernel.py compiles


def assert_acts(model: str, beside: Row, key: str, value: Any) -> None:
    before = without(model, *beside.items())
    after = after_two_steps(model, beside | {key: value})
    same = [tensor.shape for tensor in before] == [tensor.shape for tensor in after]
    assert not (same and all(map(torch.equal, before, after))), key


def test_the_measure_is_repeatable() -> None:
    assert all(map(torch.equal, after_two_steps("gpt", {}), after_two_steps("gpt", {})))


FRAGMENT = config_dir() / "_block.yaml"
BLOCK = {f"model.{key}" for key in option_content(FRAGMENT)[0]} - {"model.depth"}
BRIEF = {"bert", "vit", "gpt_seq2seq", *list_of_systems("BRIEF")}
CASES = [
    *((model, model not in BRIEF) for model in MODELS),
    *(pytest.param(model, True, marks=pytest.mark.slow) for model in BRIEF),
]


@pytest.mark.parametrize(("model", "whole"), CASES)
def test_every_key_of_a_model_acts(model: str, whole: bool) -> None:
    """whole: those of blocks, too, which gpt and transformer have as well."""
    parts = tuple(f"{group}." for group in (*base(model).choices, "model.layers"))
    for key, now, rule in ruled(base(model)):
        if not key.startswith("model.") or key.endswith(MEANINGLESS) or key.startswith(parts):
            continue
        if key in ELSEWHERE or (key in BLOCK and not whole):
            continue
        value = OTHERS.get(key) or other(key, now, rule)
        assert_acts(model, {}, key, value)


PARTS = [
    (group, name)
    for group in GROUPS
    if group.startswith(("model.", "pos_enc")) and group != "model.embedding"  # test_embedding.py
    for name in options(group)
]


@pytest.mark.ci
@pytest.mark.parametrize(("group", "name"), PARTS)
def test_every_key_of_a_part_acts(group: str, name: str) -> None:
    """In the first model that takes the part."""
    chosen = {group: name} | BESIDE.get(name, {})
    model = next(m for m in MODELS if group in axes_of(m) and not refusal(m, chosen))
    for key, now, rule in ruled(composed(model, chosen)):
        if key.startswith(f"{group}.") and not key.endswith(MEANINGLESS):
            value = OTHERS.get(key) or other(key, now, rule)
            assert_acts(model, chosen, key, value)


ROTARY = {"pos_enc": "rotary"}  # learned positions do not differ by layer


@pytest.mark.ci
def test_every_key_of_a_block_acts_by_layer() -> None:
    content, cfg = option_content(FRAGMENT)[0], composed("gpt", ROTARY)
    of_the_stack = {"drop_path", "embedding_scale", "share_layers", "activation_checkpointing"}
    assert set(content) - set(content["layers"]) == {"layers", "init_depth_scale", *of_the_stack}
    known = {key: (now, rule) for key, now, rule in ruled(cfg)}
    for key in content["layers"].keys() - {"cross_attention"}:
        path = ALIASES.get(f"model.{key}", key if key == "pos_enc" else f"model.{key}")
        if path in GROUPS:
            # The streams of hyper-connections are those of all layers.
            now, others = cfg.choices[path], [o for o in axes_of("gpt")[path] if o != "hyper"]
        else:
            now, rule = known[path]
            others = [other(path, now, rule)]
        slot = "mixer" if path in ALIASES.values() else key
        assert_acts("gpt", ROTARY, f"model.layers.{slot}", pattern(key, slot, now, others))


def pattern(key: str, slot: str, now: Any, others: list[Any]) -> Any:
    """A pattern of the first that may stand beside the usual one, as the command line reads it."""
    for another in others:
        typed = f"model.layers.{key}=[{written(now)},{written(another)}]"
        with suppress(UserError):
            if another != now:
                return compose(*base_overrides("gpt"), "pos_enc=rotary", typed).model.layers[slot]
    raise AssertionError(f"{key} takes no second value")


@pytest.mark.ci
@pytest.mark.parametrize(
    ("model", "chosen", "names"),
    [
        ("gpt", {}, kernels()),
        ("rnn_seq2seq", {"model.attention": "general", "model.decoder": "luong"}, kernels()),
    ],
)
def test_a_kernel_changes_nothing(model: str, chosen: Row, names: list[str]) -> None:
    expected = after_two_steps(model, chosen | {"kernel": "reference"})
    for name in names:
        found = after_two_steps(model, chosen | {"kernel": name})
        for mine, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-3)
