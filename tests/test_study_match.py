"""study.match: the width that makes an arm cost what the baseline costs."""

import json

import pytest
from make_sweep import tiny_for, write_sweep
from tiny import overrides, pairs

import ablate
from ablate.errors import UserError
from ablate.study.plan.match import match, require_width
from ablate.training.build import build, build_data, count_flops
from ablate.training.record import count_parameters
from ablate.training.same_model import on_meta

pytest_plugins = ["command_line"]


def composed(base, *arms):
    return {arm or "baseline": ablate.compose(*base, *arm.split()) for arm in ("", *arms)}


def solved(base, *arms, budget="parameters", by="model.ffn_dim"):
    return match(composed(base, *arms), baseline="baseline", budget=budget, by=by)


def cost(cfg, budget):
    """As a run counts it."""
    if budget == "parameters":
        return count_parameters(build(cfg))["total"]
    return count_flops(cfg, on_meta(cfg, build_data(cfg)))


@pytest.mark.slow
@pytest.mark.parametrize("budget", ["parameters", pytest.param("flops", marks=pytest.mark.slow)])
def test_the_nearest_width_is_set(tmp_path, budget):
    """Against every width there is; the arms have too few and too many."""
    base = overrides(tmp_path, "model.dim=32")
    for arm in ("model.attention=uniform", "model.ffn=geglu model.depth=2"):
        found = solved(base, arm, budget=budget)[arm]
        target = cost(ablate.compose(*base), budget)
        after = cost(ablate.compose(*base, *arm.split(), found.override), budget)
        assert (found.target, found.after) == (target, after)
        assert found.before == cost(ablate.compose(*base, *arm.split()), budget)
        assert abs(after / target - 1) <= 0.02 < abs(found.before / target - 1)
        for width in range(found.width - 2, found.width + 3):
            other = ablate.compose(*base, *arm.split(), f"model.ffn_dim={width}")
            assert abs(cost(other, budget) - target) >= abs(after - target)
        assert f"model.ffn_dim={found.width}: {after:,}" in str(found)


def test_arms_that_are_near_enough_are_left_alone(tmp_path):
    arms = ("model.ffn=swiglu", "model.norm=post", "model.attention=additive")
    assert solved(overrides(tmp_path, "model.depth=2", "model.dim=32"), *arms) == {}


def test_widths_that_do_not_fit_are_passed_over(tmp_path):
    """dim is a multiple of 3 heads, each of an even width for the rotation."""
    base = overrides(tmp_path, "model.heads=3", "model.dim=192", "pos_enc=rotary")
    found = solved(base, "model.ffn=none", by="model.dim")["model.ffn=none"]
    assert found.width > 192
    assert found.width % 6 == 0
    cfg = ablate.compose(*base, "model.ffn=none", found.override)
    assert cost(cfg, "parameters") == found.after


def test_a_model_of_pairs(tmp_path):
    base = pairs(tmp_path, "model.dim=32")
    arm = "model.cell=lstm"
    found = solved(base, arm, by="model.dim")[arm]
    assert found.width < 32
    assert abs(found.after / found.target - 1) <= 0.02


@pytest.mark.parametrize(
    ("arm", "by", "message"),
    [
        (
            "model.ffn=none",
            "model.ffn_dim",
            r"arm 'model\.ffn=none' \(.* below the baseline's [\d,]+\): no model\.ffn_dim can be"
            r" set in it: model\.ffn_dim=1 has no effect with model\.ffn=none",
        ),
        ("model.ffn=none", "model.heads", r"model\.heads has no influence on it"),
        ("model.ffn_dim=99", "model.ffn_dim", r"it sets study\.match_by=model\.ffn_dim itself"),
        (
            "model.ffn=none",
            "model.depth",
            r"no model\.depth comes within 2%; the nearest is model\.depth=\d+ with [\d,]+"
            r" parameters, [\d.]+% (above|below) the",
        ),
        ("model.depth=40", "model.ffn_dim", r"the nearest is model\.ffn_dim=1 with .* above"),
    ],
)
def test_what_cannot_be_matched_is_refused(tmp_path, arm, by, message):
    with pytest.raises(UserError, match=message) as caught:
        solved(overrides(tmp_path), arm, by=by)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("by", ["model.fn_dim", "optimizer.lr", "model.dropout", "data.seq_len"])
def test_only_a_whole_number_of_the_model_can_be_matched_by(tmp_path, by):
    cfg = ablate.compose(*overrides(tmp_path))
    said = rf"match_by={by}: must be a whole number .* model\.ffn_dim"
    with pytest.raises(UserError, match=said) as no:
        require_width(by, [cfg], matched=True)
    assert "\n" not in str(no.value)
    require_width("model.ffn_dim", [cfg], matched=True)


def test_near_enough_where_the_width_has_no_influence(tmp_path):
    base = overrides(tmp_path, "model.ffn=none")
    assert solved(base, "model.norm=post model.residual=false", by="model.heads") == {}


@pytest.mark.slow
def test_every_arm_that_cannot_be_matched_is_named(tmp_path):
    arms = ("model.ffn=none", "model.ffn=none model.attention=uniform", "model.attention=uniform")
    with pytest.raises(UserError) as caught:
        solved(overrides(tmp_path), *arms)
    assert [f"'{arm}'" in str(caught.value) for arm in arms] == [True, True, False]


def test_an_arm_that_cannot_be_built_is_left_to_budgets(tmp_path):
    bad = "pos_enc=t5 pos_enc.buckets=32 pos_enc.max_distance=4"
    assert solved(overrides(tmp_path), bad) == {}


def test_what_was_solved_is_what_runs_and_what_the_plan_says(ablate_command, runs, tmp_path):
    study = """{factors: {model.tie_embeddings: [false], model.bias: [false]},
        match: parameters, seeds: 2}"""
    argv = [*write_sweep(tmp_path, study), *tiny_for(study, tmp_path), "hydra/launcher=basic"]
    code, out, err = ablate_command(*argv)
    assert (code, err) == (0, "")
    base, untied, bare = json.loads((tmp_path / "outputs/mine/plan.json").read_text())["arms"]
    assert base["set"] == {}
    for arm, ran in ((untied, (1, 4)), (bare, (2, 5))):
        (width,) = arm["set"].values()
        assert [runs[n][0].model.ffn_dim for n in ran] == [width] * 2
        assert arm["parameters"] == pytest.approx(base["parameters"], rel=0.02)
        assert f"ablate: {arm['name']}: study.match=parameters sets model.ffn_dim={width}" in out
    assert {runs[n][0].model.ffn_dim for n in (0, 3)} == {None}
