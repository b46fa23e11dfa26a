"""From a sweep's file to the arms and cells of a plan, and the ids of their runs."""

import re
from itertools import product
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from make_sweep import asked, laid_out, write_sweep
from refusals import refused

from ablate.config.composition import Composition
from ablate.config.overrides import key_of, parse_one, value_text
from ablate.config.tree import config_dir, open_tree
from ablate.study.plan import claims, design
from ablate.study.plan.cells import Composer, PlannedRuns
from ablate.study.plan.design import Factor
from ablate.study.plan.layout import lay_out
from ablate.study.plan.request import parse_request

# Designs


def factor(name, *options):
    return Factor(name, {option: (f"{name}={option}",) for option in options})


SCORE = factor("model.attention", "scaled_dot", "dot", "additive")
POS = factor("pos_enc", "learned", "none")
POST = ("model.norm=post", "schedule.warmup=9")
NORM = Factor("norm", {"pre": ("model.norm=pre",), "post": POST})
ALL = (SCORE, POS, NORM)
OWN = {"model.attention": "scaled_dot", "pos_enc": "learned", "norm": "pre"}


def changes(kind, *factors):
    """Those of every cell, of which the baseline is the first, and none is there twice."""
    own = {factor.name: OWN[factor.name] for factor in factors}
    found = list(design.rows(kind, factors, own))
    assert len(found) == design.count(kind, factors, own)
    assert found[0] == own
    assert len({tuple(row.items()) for row in found}) == len(found)
    return [{k: v for k, v in row.items() if v != OWN[k]} for row in found]


def test_designs():
    singles = [{}, {"model.attention": "dot"}, {"model.attention": "additive"}]
    assert changes("one_factor", *ALL) == [*singles, {"pos_enc": "none"}, {"norm": "post"}]
    assert changes("leave_one_out", POS, NORM) == [{}, {"pos_enc": "none"}, {"norm": "post"}]
    assert changes("pairs", *ALL) == [
        *changes("one_factor", *ALL),
        {"model.attention": "dot", "pos_enc": "none"},
        {"model.attention": "additive", "pos_enc": "none"},
        {"model.attention": "dot", "norm": "post"},
        {"model.attention": "additive", "norm": "post"},
        {"pos_enc": "none", "norm": "post"},
    ]
    one, other = {"norm": "post"}, {"pos_enc": "none"}
    assert changes("factorial", POS, NORM) == [{}, one, other, other | one]
    assert len(changes("factorial", *ALL)) == 3 * 2 * 2
    with refused("leave_one_out: model.attention has 2 options", "design=one_factor"):
        list(design.rows("leave_one_out", ALL, OWN))


def arm(row, factors=ALL, own=OWN, *, all_set=False):
    return design.arm(row, factors, own, all_set=all_set, named=False)


def test_arms_set_what_they_change_and_say_so():
    row = {"model.attention": "dot", "pos_enc": "learned", "norm": "post"}
    made, base = arm(row), arm(OWN)
    assert made.name == "model.attention=dot norm=post"
    assert made.changes == {"model.attention": "dot", "norm": "post"}
    assert made.overrides == ("model.attention=dot", "model.norm=post", "schedule.warmup=9")
    assert {*arm(row, all_set=True).overrides} == {*made.overrides, "pos_enc=learned"}
    assert (base.name, base.is_baseline, base.overrides) == ("baseline", True, ())


def test_two_factors_that_set_one_key_cannot_be_combined():
    warmup = Factor("warmup", {"on": (), "off": ("schedule.warmup=0",)})
    both, own = [NORM, warmup], {"norm": "pre", "warmup": "on"}
    for row in design.rows("one_factor", both, own):
        arm(row, both, own)
    with refused("norm and warmup both set schedule.warmup"):
        arm({"norm": "post", "warmup": "off"}, both, own)


# Arms


def names(layout):
    return [composed.name for composed in layout.arms]


def test_the_baselines_own_option_is_the_baseline(tmp_path):
    """By value, not by spelling; a named one by its overrides."""
    layout = laid_out(
        tmp_path,
        """{baseline: [model.norm=post], factors: {
            model.attention: [dot, scaled_dot], optimizer.lr: [0.002, 1.0e-2],
            model.residual: [true, false], model.ffn_dim: [null, 24],
            norm: {before: [model.norm=pre], after: [model.norm=post]}}}""",
    )
    changed = "model.attention=dot optimizer.lr=0.01 model.residual=false model.ffn_dim=24"
    assert names(layout) == ["baseline", *changed.split(), "norm=before"]
    own = "model.attention=scaled_dot optimizer.lr=0.002 model.residual=true model.ffn_dim=null"
    assert [f"{key}={option}" for key, option in layout.baseline_options.items()] == [
        *own.split(), "norm=after",
    ]  # fmt: skip
    assert [layout.arms[n].config.model.norm for n in (1, -1)] == ["post", "pre"]


def test_the_command_line_wins_over_the_baseline_and_arms_win_over_both(tmp_path):
    layout = laid_out(
        tmp_path,
        "{baseline: [model.norm=post, model.dropout=0.3], factors: {pos_enc: [none]}}",
        "model.dropout=0.2",
        body="optimizer: {lr: 0.5}",
    )
    for composed in layout.arms:
        cfg = composed.config
        assert (cfg.model.dropout, cfg.model.norm, cfg.optimizer.lr) == (0.2, "post", 0.5)
    assert layout.arms[1].config.choices.pos_enc == "none"
    assert len([t for t in layout.arms[1].overrides if key_of(t) == "model.dropout"]) == 1


def test_a_part_that_one_model_of_several_lacks_is_illegal_there(tmp_path):
    """Known names in a cell without a sense: a matter of study.on_invalid, not a typing mistake."""
    study = """{design: factorial, on_invalid: skip, factors: {model.norm: [post],
        kind: {gpt: [], rnn: [model=rnn_lm]}}}"""
    layout = lay_out(*asked(tmp_path, study, left_out=("model.heads",)))
    assert names(layout) == ["baseline", "kind=rnn", "model.norm=post"]
    assert "model.norm" in layout.invalid["model.norm=post kind=rnn"]


def test_excluded_cells_are_left_out_and_remembered(tmp_path):
    """Those that have all of an entry, whatever else they have."""
    layout = laid_out(
        tmp_path,
        """{design: factorial, factors: {model.residual: [false], model.norm: [post, none]},
            exclude: [{model.norm: none}], seeds: 3}""",
    )
    excluded = ["model.norm=none", "model.residual=false model.norm=none"]
    assert layout.excluded == {name: {"model.norm": "none"} for name in excluded}
    assert (len(layout.arms), layout.seeds) == (4, (0, 1, 2))


def test_a_study_has_a_folder_of_its_own(tmp_path):
    """Which a command with more values or seeds finds again, and a trial with fewer steps not."""
    _, own, sweep, _ = write_sweep(tmp_path, "{name: mine, factors: {pos_enc: [none, learned]}}")

    def name(*typed):
        fixed = [text for text in typed if "," not in text]
        tree = open_tree(own)
        return parse_request(tree.load(fixed), typed, tree).name

    assert name(sweep) == name(sweep, "logger=none", "study.seeds=2") == "mine"
    trial = name(sweep, "trainer.max_steps=10")
    assert trial.startswith("mine-")
    assert trial == name(sweep, "study.seeds=3", "trainer.max_steps=10")
    assert trial == name(sweep, "trainer.max_steps=20", "trainer.max_steps=10")
    assert trial != name(sweep, "model.dim=64")
    assert name(sweep, "study.match=flops") not in (trial, "mine")  # whose arms are other runs
    assert name(sweep, "trainer.max_steps=10", "study.name=x") == "x"
    commas = name("pos_enc=none,learned", "seed=0,1")
    assert commas == name("pos_enc=none,rotary") != name("pos_enc=none,learned", "model.dim=8")
    tuned = "study.tune.optimizer.lr=[1e-3]"
    assert commas != name("pos_enc=none,learned", tuned)
    both = name("pos_enc=none,learned", tuned, "study.tune.model.dropout=[0,0.1]")
    assert both != name("pos_enc=none,learned", "study.tune.model.dropout=[0,0.1]")


# PlannedRuns


@pytest.mark.ci
def test_cells_put_the_same_seed_of_all_arms_together_and_have_the_ids_of_their_runs(tmp_path):
    """Each composition is resolved once, unless a value of it is made of the seed."""
    plan = "{factors: {pos_enc: [none, rotary]}, seeds: [4, 0]}"
    arms = ["baseline", "pos_enc=none", "pos_enc=rotary"]
    for more in ((), ("schedule.warmup=${seed}",)):
        layout = laid_out(tmp_path, plan, *more)
        cells = PlannedRuns().by_seed(layout.arms, layout.seeds)
        assert [(cell.seed, cell.arm) for cell in cells] == [*product((4, 0), arms)]
        for cell in cells:
            arm = layout.arms[arms.index(cell.arm)]
            arm.config.seed = cell.seed
            assert cell.run_id == Composition(arm.config).id
            assert cell.folder == f"{cell.arm}-{cell.run_id}"
            assert cell.job(Path("/o"))[-1] == f"run_dir={value_text(f'/o/{cell.folder}')}"
            assert {f"seed={cell.seed}", f"study.arm={value_text(cell.arm)}"} <= {*cell.overrides}
        assert len({cell.run_id for cell in cells}) == 6


# Of a mapping: Hydra's grammar has no quotes for them.
KEYS = st.integers() | st.from_regex(r"[A-Za-z_][A-Za-z0-9_.=:,() -]*x", fullmatch=True)


@pytest.mark.ci
@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers(-(10**6), 10**6)
        | st.floats()
        | st.sampled_from(["true", "null", "inf", "nan", "-1", "1e5", "it's", "a\\'b", "/a/b-1"])
        | st.text(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
        max_leaves=4,
    )
)
def test_a_value_is_read_back_as_it_was(value):
    found = _plain(parse_one(f"key={value_text(value)}", "here").value())
    assert repr(found) == repr(value)  # of nan too, which is not equal to itself


def _plain(value):
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return getattr(value, "text", value)


# The pages on sweep files and claims

HOW_TO = Path(__file__).parents[1] / "docs" / "how-to"


def blocks_and_keys(page):
    """The YAML blocks of a page, and the names in the first column of its tables."""
    text = (HOW_TO / page).read_text()
    rows = re.findall(r"^\| (`.*?`) \|", text, re.MULTILINE)
    return re.findall(r"```yaml\n(.*?)```", text, re.DOTALL), set(
        re.findall(r"`(\w+)`", " ".join(rows))
    )


@pytest.mark.ci
def test_the_page_on_sweep_files_has_every_key_and_its_file_is_a_plan(tmp_path):
    (file, *_), keys = blocks_and_keys("write-a-sweep-file.md")
    assert yaml.safe_load((config_dir() / "config.yaml").read_text())["study"].keys() <= keys
    (tmp_path / "sweep").mkdir()
    (tmp_path / "sweep" / "positions.yaml").write_text(file)
    tree = open_tree(str(tmp_path))
    command = tree.load(["sweep=positions"])
    question = parse_request(command, ["sweep=positions"], tree)
    layout = lay_out(question, Composer(tree, command, question.fixed))
    names = [composed.name for composed in layout.arms]
    assert (len(names), len(layout.seeds), len(layout.excluded)) == (9, 5, 1)
    assert claims.parse_claims(question.node["claims"], names, names[0])


def test_the_page_on_claims_has_every_key_and_its_claims_are_ones():
    (first, others), keys = blocks_and_keys("preregister-claims.md")
    assert {*claims.KEYS} <= keys
    said = [*yaml.safe_load(first)["study"]["claims"], *yaml.safe_load(others)]
    arms = {name for each in said for name in (each["arm"], each.get("versus"), "warmup=without")}
    assert len(claims.parse_claims(said, arms, "baseline")) == 6
