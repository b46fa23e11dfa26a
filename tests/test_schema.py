"""Every key has a rule, and every rule says yes and no where it should."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from ablate.config.check import leaves
from ablate.config.compose import compose
from ablate.config.keys import option_content
from ablate.config.rules import Bool, Exactly, Int, ListOf, OneOf, Real, Rule, Text, either, or_null
from ablate.config.schema import VALUES, rule_of
from ablate.config.tree import config_dir
from ablate.errors import UserError

FREE = ("model.args", "study.factors.", "study.tune.")  # handed to timm; a person's own keys


def default_leaves() -> dict[str, object]:
    """Every key of every file of conf/ under its path, such as data.path, with its default."""
    found: dict[str, object] = {}
    for path in [config_dir() / "config.yaml", *config_dir().glob("*/*.yaml")]:
        text = path.read_text()
        content = OmegaConf.to_container(OmegaConf.load(path))
        for key in ("defaults", "hydra"):
            content.pop(key, None)
        at_root = path.parent == config_dir() or "@package _global_" in text
        nested = content
        if not at_root:
            nested = {}
            node = nested
            for name in path.parent.name.split("."):
                node[name] = node = {}
            node.update(content)
        for leaf, value in leaves(OmegaConf.create(nested)):
            found[f"{path.parent.name}/{path.name}: {leaf}"] = value
    return found


def test_every_key_of_every_file_has_a_rule_and_every_default_keeps_it() -> None:
    for where, value in default_leaves().items():
        path = where.split(": ")[1]
        if path.split(".")[-1] in ("_target_", "_partial_") or path.startswith(FREE):
            continue
        rule = rule_of(path)
        assert rule is not None, f"no rule in schema.py for {where}"
        assert value == "???" or rule.allows(value), where


def test_a_key_without_a_rule_of_its_own_has_that_of_its_type() -> None:
    assert "model.bias" not in VALUES
    assert rule_of("model.bias") == Bool()
    with pytest.raises(UserError, match=r"model\.bias=1: must be true or false"):
        compose("model.bias=1")
    assert rule_of("model.nobody_knows") is None


def test_files_are_read_as_omegaconf_reads_them() -> None:
    for path in config_dir().glob("*/*.yaml"):
        if path.parent.name == "model":
            expected = dict(compose(f"model={path.stem}").model)
        elif "@package _global_" in path.read_text():
            continue
        else:
            expected = OmegaConf.to_container(OmegaConf.load(path)) or {}
        for key, value in option_content(path)[0].items():
            if key not in expected:  # of the option that this one builds on
                continue
            assert value == expected[key], (path.name, key)
            assert type(value) is type(expected[key]) or isinstance(value, dict), (path.name, key)


def test_the_fragment_of_a_block_is_in_every_model_with_blocks() -> None:
    fragment = OmegaConf.load(config_dir() / "_block.yaml")
    having = {
        path.stem for path in config_dir().glob("model/*.yaml") if "_block" in path.read_text()
    }
    assert having == {"gpt", "bert", "vit", "transformer", "transformer_forecaster"}
    for name in having:
        assert set(fragment) <= set(compose(f"model={name}").model)


def test_every_rule_has_a_key() -> None:
    paths = {where.split(": ")[1] for where in default_leaves()}
    for pattern, rule in VALUES.items():
        assert any(rule_of(path) is rule for path in paths), pattern


@pytest.mark.parametrize(
    ("rule", "good", "bad"),
    [
        (Int(1), [1, 7], [0, True, 4.0, "2", None, -1]),
        (Real(0, 1, below=True), [0, 0.5], [1, 1.0, -0.1, True, "0.5", float("nan")]),
        (Real(0, above=True), [1e-9, 3], [0, float("inf")]),
        (Bool(), [True, False], [0, 1, "true", None]),
        (Text(), ["x"], ["", " ", 3, None]),
        (OneOf(("a", "b")), ["a"], ["c", "", None, ["a"]]),
        (ListOf(Int(1)), [[1], [2, 3]], [[], [0], 1, "1"]),
        (ListOf(Int(1), length=2), [[1, 2]], [[1], [1, 2, 3]]),
        (or_null(Int(1)), [None, 2], [0, "null"]),
        (either(Int(1), Exactly(-1)), [1, -1], [-2, -1.0, True]),
    ],
)
def test_rules(rule: Rule, good: list[object], bad: list[object]) -> None:
    assert all(rule.allows(value) for value in good)
    assert not any(rule.allows(value) for value in bad)
    assert len(str(rule)) > 0


@given(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.lists(st.none()))
)
def test_no_value_breaks_a_rule(value: object) -> None:
    for rule in set(VALUES.values()):
        assert rule.allows(value) in (True, False)
