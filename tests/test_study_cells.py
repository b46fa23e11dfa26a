"""Arms composed and checked, and their cells: from a sweep's file to run ids."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from make_sweep import asked, laid_out

from ablate.config.composition import Composition
from ablate.config.overrides import key_of, merged, parse_one, value_text
from ablate.config.tree import open_tree
from ablate.errors import UserError
from ablate.study.plan.cells import Cells
from ablate.study.plan.layout import Layout, lay_out
from ablate.study.plan.request import parse_request


def names(layout: Layout) -> list[str]:
    return [composed.name for composed in layout.arms]


def test_the_baselines_own_option_is_the_baseline(tmp_path: Path) -> None:
    """By value, not by spelling; a named one by its overrides."""
    layout = laid_out(
        tmp_path,
        """{baseline: [model.norm=post], factors: {
            model.attention: [dot, scaled_dot], optimizer.lr: [0.002, 1.0e-2],
            model.residual: [true, false], model.ffn_dim: [null, 24],
            norm: {before: [model.norm=pre], after: [model.norm=post]}}}""",
    )
    assert names(layout) == [
        "baseline",
        "model.attention=dot",
        "optimizer.lr=0.01",
        "model.residual=false",
        "model.ffn_dim=24",
        "norm=before",
    ]
    assert layout.own == {
        "model.attention": "scaled_dot",
        "optimizer.lr": "0.002",
        "model.residual": "true",
        "model.ffn_dim": "null",
        "norm": "after",
    }
    assert layout.arms[-1].config.model.norm == "pre"
    assert layout.arms[1].config.model.norm == "post"


def test_an_option_that_the_baseline_does_not_list_is_named_after_its_value(tmp_path: Path) -> None:
    layout = laid_out(
        tmp_path,
        "{factors: {model.attention: dot, model.norm: [post], both: {x: [model.bias=false]}}}",
    )
    assert layout.own == {"model.attention": "scaled_dot", "model.norm": "pre", "both": "baseline"}
    assert names(layout) == ["baseline", "model.attention=dot", "model.norm=post", "both=x"]


def test_the_command_line_wins_over_the_baseline_and_arms_win_over_both(tmp_path: Path) -> None:
    layout = laid_out(
        tmp_path,
        "{baseline: [model.norm=post, model.dropout=0.3], factors: {pos_enc: [none]}}",
        "model.dropout=0.2",
        body="optimizer: {lr: 0.5}",
    )
    for composed in layout.arms:
        assert composed.config.model.dropout == 0.2
        assert composed.config.model.norm == "post"
        assert composed.config.optimizer.lr == 0.5
    assert layout.arms[1].config.choices.pos_enc == "none"
    assert len([t for t in layout.arms[1].overrides if key_of(t) == "model.dropout"]) == 1


def test_what_a_sweep_asks_stands_in_its_first_lines(tmp_path: Path) -> None:
    with asked(tmp_path, "{factors: {pos_enc: [none]}}") as (question, _):
        assert question.description == "Mine."
    with open_tree() as tree:
        argv = ["sweep=attention_scores"]
        question, paper = parse_request(tree.load(argv), argv, tree.loader).description.splitlines()
    assert question.startswith("Which score function learns best?")
    assert "arxiv.org/abs/1508.04025" in paper


def test_values_that_need_quotes(tmp_path: Path) -> None:
    other = tmp_path / "a, b c.txt"
    other.write_text("to be or not to be " * 50)
    layout = laid_out(
        tmp_path,
        f"""{{factors: {{data.path: ["{other}"], optimizer.betas: [[0.8, 0.9]],
            schedule.warmup: [0]}}}}""",
        body=f"data: {{path: '{tmp_path / 'tiny.txt'}'}}\nschedule: {{warmup: 2}}",
    )
    assert layout.arms[1].config.data.path == str(other)
    assert layout.arms[2].config.optimizer.betas == [0.8, 0.9]
    assert layout.arms[3].config.schedule.warmup == 0


# Of a mapping: Hydra's grammar has no quotes for them.
KEYS = st.integers() | st.from_regex(r"[A-Za-z_][A-Za-z0-9_.=:,() -]*x", fullmatch=True)


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
def test_a_value_is_read_back_as_it_was(value: object) -> None:
    found = _plain(parse_one(f"key={value_text(value)}", "here").value())
    assert repr(found) == repr(value)  # of nan too, which is not equal to itself


def _plain(value: object) -> object:
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return getattr(value, "text", value)


def test_merging_keeps_the_last_of_a_key() -> None:
    found = merged(["a=1", "++b.c=2"], ["a=3"], ["b.c=4", "d=5"])
    assert found == ("a=3", "b.c=4", "d=5")


def test_cells_put_the_same_seed_of_all_arms_together(tmp_path: Path) -> None:
    layout = laid_out(tmp_path, "{factors: {pos_enc: [none, rotary]}, seeds: [4, 0]}")
    cells = Cells().by_seed(layout.arms, layout.seeds)
    assert [(cell.seed, cell.arm) for cell in cells] == [
        (4, "baseline"), (4, "pos_enc=none"), (4, "pos_enc=rotary"),
        (0, "baseline"), (0, "pos_enc=none"), (0, "pos_enc=rotary"),
    ]  # fmt: skip
    for cell in cells:
        arm = layout.arms[names(layout).index(cell.arm)]
        arm.config.seed = cell.seed
        assert cell.run_id == Composition(arm.config).id
        assert cell.folder == f"{cell.arm}-{cell.run_id}"
        assert cell.job[-1] == f"hydra.sweep.subdir={value_text(cell.folder)}"
        assert f"seed={cell.seed}" in cell.overrides
        assert f"study.arm={value_text(cell.arm)}" in cell.overrides
    assert len({cell.run_id for cell in cells}) == 6


def test_arms_that_are_the_same_work_run_once(tmp_path: Path) -> None:
    layout = laid_out(
        tmp_path,
        "{factors: {model.norm: [post], again: {x: [model.norm=post], y: [model.norm=none]}}}",
    )
    cells = Cells().by_seed(layout.arms, layout.seeds)
    assert len(cells) == 4
    assert len({cell.folder for cell in cells}) == 3
    assert {c.name: c.same_as for c in layout.arms} == {
        "baseline": None,
        "model.norm=post": None,
        "again=x": "model.norm=post",
        "again=y": None,
    }


def test_all_illegal_cells_are_listed(tmp_path: Path) -> None:
    study = "{factors: {model.heads: [4, 3, 5], model.norm: [post]}, design: factorial, seeds: 2}"
    with pytest.raises(UserError) as error:
        laid_out(tmp_path, study)
    line = str(error.value)
    assert line.startswith("4 of 6 arms cannot be run: [model.heads=3] ")
    for name in ("model.heads=5", "model.heads=3 model.norm=post", "model.heads=5 model.norm=post"):
        assert f"[{name}] model.heads=" in line
    layout = laid_out(tmp_path, study, "study.on_invalid=skip")
    assert names(layout) == ["baseline", "model.norm=post"]
    assert set(layout.invalid) == {
        "model.heads=3",
        "model.heads=5",
        "model.heads=3 model.norm=post",
        "model.heads=5 model.norm=post",
    }


def test_a_part_that_one_model_of_several_lacks_is_illegal_there(tmp_path: Path) -> None:
    """Known names in a cell without a sense: a matter of study.on_invalid, not a typing mistake."""
    study = """{design: factorial, on_invalid: skip, factors: {model.norm: [post],
        kind: {gpt: [], rnn: [model=rnn_lm]}}}"""
    with asked(tmp_path, study, left_out=("model.heads",)) as (question, composer):
        layout = lay_out(question, composer)
    assert names(layout) == ["baseline", "kind=rnn", "model.norm=post"]
    assert "model.norm" in layout.invalid["model.norm=post kind=rnn"]


def test_excluded_cells_are_left_out_and_remembered(tmp_path: Path) -> None:
    layout = laid_out(
        tmp_path,
        """{design: factorial, factors: {model.residual: [false], model.norm: [post, none]},
            exclude: [{model.residual: false, model.norm: none}]}""",
    )
    assert "model.residual=false model.norm=none" not in names(layout)
    assert len(layout.arms) == 5
    assert layout.excluded == {
        "model.residual=false model.norm=none": {"model.residual": "false", "model.norm": "none"}
    }


def test_seeds_are_a_number_or_a_list(tmp_path: Path) -> None:
    study = "{factors: {pos_enc: [none]}, seeds: %s}"
    assert laid_out(tmp_path, study % 3).seeds == (0, 1, 2)
    assert laid_out(tmp_path, study % [7, 2]).seeds == (7, 2)
    assert laid_out(tmp_path, study % 1, "study.seeds=[5]").seeds == (5,)
