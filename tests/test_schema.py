"""Every key has a rule, and every rule says yes and no where it should."""

import math
import sys
from contextlib import nullcontext
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from make_rules import rules_of_keys, rules_of_options
from omegaconf import OmegaConf
from refusals import refused

from ablate import data
from ablate.config.composition import compose
from ablate.config.keys import option_content
from ablate.config.parts import parameters
from ablate.config.rules import (
    BOOL,
    NULL,
    Count,
    Either,
    Int,
    ListOf,
    OneOf,
    Real,
    Share,
    String,
)
from ablate.config.schema import VALUES, rule_of, ruled
from ablate.config.tree import config_dir, config_files
from ablate.errors import UserError

# A person's own keys; values by layer, each of which is checked as the key itself.
FREE = ("study.factors.", "study.tune.", "model.layers.")


def test_every_key_of_every_file_has_a_rule_and_every_default_keeps_it():
    top = OmegaConf.to_container(OmegaConf.load(config_dir() / "config.yaml"))
    top = {key: value for key, value in top.items() if key not in ("defaults", "hydra")}
    files = {**rules_of_options(), "config.yaml": {n: (v, r) for n, v, r in ruled(top)}}
    for file, keys in files.items():
        for path, (value, rule) in keys.items():
            if path.endswith(("_target_", "_partial_")) or path.startswith(FREE):
                continue
            assert rule is not None, f"no rule for {path} of {file}"
            resolved = isinstance(value, str) and "${" in value
            assert resolved or value == "???" or rule.allows(value), (file, path)


def test_a_rule_stands_at_the_parameter() -> None:
    """A name for it, a Literal, a plain type, what ** hands on, and what a base class has."""
    bert = parameters("ablate.model.bert.BERT").rules
    assert bert["dim"] == bert["heads"] == Int(1, 2**24)
    assert bert["norm"] == OneOf(("pre", "post", "sandwich", "output", "none"))
    assert "layers" not in bert
    assert parameters("ablate.model.transformer.Transformer").rules["decoder.depth"] == Int(1, 1000)
    assert parameters("ablate.data.mnist.FashionMnist").rules["flip"] == bert["bias"] == BOOL
    assert rule_of("model.nobody_knows") is None


def test_every_annotation_that_restricts_values_is_a_rule():
    def part(
        one: Annotated[int, Int(1, math.inf)], two: tuple[Count, Count], three: Literal[1, 2, 4],
        four: Literal["auto", None] | Count, five: "list[Share]", six: Any = 0, **more: Any,
    ): ...  # fmt: skip

    rules = parameters(part).rules
    assert rules["one"] == Int(1)
    assert rules["two"] == ListOf(Int(1, 2**31 - 1), 2)
    assert not rules["three"].allows(3)
    assert [rules["four"].allows(value) for value in ("auto", None, 1, 0, "x")] == [1, 1, 1, 0, 0]
    assert rules["five"] == ListOf(Real(0, 1, below=True))
    assert not {"six", "more"} & {*rules}


@pytest.mark.ci
def test_files_are_read_as_omegaconf_reads_them():
    for path in config_files("*/*.yaml"):
        if path.parent.name == "model":
            expected = dict(compose(f"model={path.stem}").model)
        elif "@package _global_" in path.read_text():
            continue
        else:
            expected = OmegaConf.to_container(OmegaConf.load(path)) or {}
        content = option_content(path)[0]
        for key in content.keys() & expected.keys():  # the others are those of what it builds on
            value = content[key]
            assert value == expected[key], (path.name, key)
            assert type(value) is type(expected[key]) or isinstance(value, dict), (path.name, key)


@pytest.mark.parametrize(
    ("rule", "good", "bad"),
    [
        (Int(1), [1, 7], [0, True, 4.0, "2", None, -1]),
        (Real(0, 1, below=True), [0, 0.5], [1, 1.0, -0.1, True, "0.5", float("nan")]),
        (Real(0, above=True), [1e-9, 3], [0, float("inf")]),
        (BOOL, [True, False], [0, 1, "true", None]),
        (String(), ["x"], ["", " ", 3, None]),
        (OneOf(("a", "b")), ["a"], ["c", "", None, ["a"]]),
        (ListOf(Int(1)), [[1], [2, 3]], [[], [0], 1, "1"]),
        (ListOf(Int(1), length=2), [[1, 2]], [[1], [1, 2, 3]]),
        (Either((Int(1), NULL)), [None, 2], [0, "null"]),
        (Either((Int(1), OneOf((-1,)))), [1, -1], [-2, -1.0, True]),
    ],
)
def test_rules(rule, good, bad):
    assert all(rule.allows(value) for value in good)
    assert not any(rule.allows(value) for value in bad)
    assert len(str(rule)) > 0


@given(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.lists(st.none()))
)
def test_no_value_breaks_a_rule(value):
    for rule in {*VALUES.values(), *chain(*rules_of_keys().values())}:
        assert rule.allows(value) in (True, False)


OTHERS = '''
from typing import Annotated, Literal

from ablate.config.rules import Int, ListOf, Positive, Real
from ablate.data import Data
from ablate.data.text import TextData

class Wiki(TextData):
    """Its variants are not those of cmudict, and it has a key whose values it states itself."""

    def __init__(self, *, variants: str, part: Literal["raw", "clean"],
                 least: "Annotated[int, Int(3)]", batch_size: int, **options):
        ...

class Adan:
    def __init__(self, params, lr: Positive, betas: Annotated[list[float], ListOf(Real(0, 1))],
                 eps: tuple[float, float] = (1e-30, 1e-3)):
        ...

class Silent(Data):
    pass

class Images(Data):
    kind = "images"
'''
FILES = {
    "data/wiki": "{_target_: others.Wiki, variants: wikitext-2, part: raw, least: 3,"
    " tokenizer: char, vocab_size: null, seq_len: 64, batch_size: 4, val_fraction: 0.1}",
    "optimizer/adan": "{_target_: others.Adan, _partial_: true, lr: 1e-3, betas: [0.9, 0.9, 0.9],"
    " eps: [1e-30, 1e-3]}",
}


@pytest.fixture
def others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for --config-dir, whose options name classes of another package."""
    (tmp_path / "others.py").write_text(OTHERS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "others", raising=False)
    for name, text in FILES.items():
        file = tmp_path / "own" / f"{name}.yaml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"# Another's.\n{text}")
    parameters.cache_clear()
    rule_of.cache_clear()
    return tmp_path / "own"


@pytest.mark.ci
@pytest.mark.parametrize(
    ("typed", "line"),
    [
        # A rule of ours is not one for other people's classes.
        *((text, "") for text in ("optimizer=adan", "data=wiki", "data=wiki data.variants=x")),
        # What their parameters state is.
        ("data=wiki data.part=row", "data.part=row: must be raw or clean; did you mean 'raw'?"),
        ("model.mixer.short_conv=1", "model.mixer.short_conv=1: must be an integer of at least 2"),
        ("data=wiki data.least=2", "data.least=2: must be an integer of at least 3"),
        ("data=wiki data.batch_size=0", "data.batch_size=0: must be an integer of at least 1"),
        ("optimizer=adan optimizer.betas=[2]", "must be a list [..] of a number of at least 0"),
        ("data=image_folder data.root=[a,b]", "data.root=[a,b]: must be the path of one folder"),
    ],
)
def test_what_a_parameter_states_is_the_rule_of_its_key(typed, line, others):
    with refused(line) if line else nullcontext():
        compose(*typed.split(), config_dir=others)


@pytest.mark.ci
@pytest.mark.parametrize("module", ["others", "ablate.data.others"])
def test_the_data_of_others_says_itself_what_it_holds(others, monkeypatch, module):
    """Also where its module lies among ours: in a checkout of one's own, or a plug-in."""
    for name in ("Silent", "Images"):
        text = f"_target_: {module}.{name}\nbatch_size: 2\n"
        (others / "data" / f"{name.lower()}.yaml").write_text(text)
    monkeypatch.setattr("ablate.data.__path__", [*data.__path__, str(others.parent)])
    with pytest.raises(UserError, match=rf"{module}\.Silent: .*must define `kind`, such as .text."):
        compose("data=silent", config_dir=others)
    with pytest.raises(UserError, match=r"model=gpt reads text, .* and data=.* is images"):
        compose("data=images", config_dir=others)
    compose("model=vit", "data=images", config_dir=others)
