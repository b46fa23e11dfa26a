"""Arms composed and checked, and their cells: from a sweep's file to run ids."""

from itertools import product

from hypothesis import given
from hypothesis import strategies as st
from make_sweep import asked, laid_out
from refusals import refused

from ablate.config.composition import Composition
from ablate.config.overrides import key_of, parse_one, value_text
from ablate.study.plan.cells import Cells
from ablate.study.plan.layout import lay_out


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


def test_cells_have_the_ids_of_their_runs(tmp_path):
    """Each composition is resolved once, unless a value of it is made of the seed."""
    plan = "{factors: {model.attention: [dot]}, seeds: 3}"
    for more in ((), ("schedule.warmup=${seed}",)):
        layout = laid_out(tmp_path, plan, *more)
        for cell in Cells().by_seed(layout.arms, [1, 2]):
            (arm,) = (arm for arm in layout.arms if arm.name == cell.arm)
            arm.config.seed = cell.seed
            assert cell.run_id == Composition(arm.config).id


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
def test_a_value_is_read_back_as_it_was(value):
    found = _plain(parse_one(f"key={value_text(value)}", "here").value())
    assert repr(found) == repr(value)  # of nan too, which is not equal to itself


def _plain(value):
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return getattr(value, "text", value)


def test_cells_put_the_same_seed_of_all_arms_together(tmp_path):
    layout = laid_out(tmp_path, "{factors: {pos_enc: [none, rotary]}, seeds: [4, 0]}")
    cells = Cells().by_seed(layout.arms, layout.seeds)
    arms = ["baseline", "pos_enc=none", "pos_enc=rotary"]
    assert [(cell.seed, cell.arm) for cell in cells] == [*product((4, 0), arms)]
    for cell in cells:
        arm = layout.arms[arms.index(cell.arm)]
        arm.config.seed = cell.seed
        assert cell.run_id == Composition(arm.config).id
        assert cell.folder == f"{cell.arm}-{cell.run_id}"
        assert cell.job[-1] == f"hydra.sweep.subdir={value_text(cell.folder)}"
        assert {f"seed={cell.seed}", f"study.arm={value_text(cell.arm)}"} <= {*cell.overrides}
    assert len({cell.run_id for cell in cells}) == 6


def test_arms_that_are_the_same_work_run_once(tmp_path):
    study = "{factors: {model.norm: [post], again: {x: [model.norm=post], y: [model.norm=none]}}}"
    layout = laid_out(tmp_path, study)
    cells = Cells().by_seed(layout.arms, layout.seeds)
    assert (len(cells), len({cell.folder for cell in cells})) == (4, 3)
    same = {c.name: c.same_as for c in layout.arms if c.same_as}
    assert same == {"again=x": "model.norm=post"}


def test_all_illegal_cells_are_listed(tmp_path):
    study = "{factors: {model.heads: [4, 3, 5], model.norm: [post]}, design: factorial, seeds: 2}"
    with refused("4 of 6 arms cannot be run: [model.heads=3] ") as caught:
        laid_out(tmp_path, study)
    layout = laid_out(tmp_path, study, "study.on_invalid=skip")
    assert names(layout) == ["baseline", "model.norm=post"]
    assert len(layout.invalid) == 4
    assert all(f"[{name}] model.heads=" in str(caught.value) for name in layout.invalid)


def test_a_part_that_one_model_of_several_lacks_is_illegal_there(tmp_path):
    """Known names in a cell without a sense: a matter of study.on_invalid, not a typing mistake."""
    study = """{design: factorial, on_invalid: skip, factors: {model.norm: [post],
        kind: {gpt: [], rnn: [model=rnn_lm]}}}"""
    with asked(tmp_path, study, left_out=("model.heads",)) as (question, composer):
        layout = lay_out(question, composer)
    assert names(layout) == ["baseline", "kind=rnn", "model.norm=post"]
    assert "model.norm" in layout.invalid["model.norm=post kind=rnn"]


def test_excluded_cells_are_left_out_and_remembered(tmp_path):
    layout = laid_out(
        tmp_path,
        """{design: factorial, factors: {model.residual: [false], model.norm: [post, none]},
            exclude: [{model.residual: false, model.norm: none}], seeds: 3}""",
    )
    name = "model.residual=false model.norm=none"
    assert layout.excluded == {name: {"model.residual": "false", "model.norm": "none"}}
    assert name not in names(layout)
    assert (len(layout.arms), layout.seeds) == (5, (0, 1, 2))
