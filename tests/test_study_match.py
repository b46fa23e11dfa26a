"""study.match: the width that makes an arm cost what the baseline costs."""

import json

import pytest
from make_sweep import tiny_for, write_sweep
from refusals import refused
from tiny import overrides, pairs

import ablate
from ablate.study.plan.match import match, require_width
from ablate.training.build import build, build_data, count_flops
from ablate.training.record import count_parameters
from ablate.training.same_model import on_meta

pytest_plugins = ["command_line"]
ATTENTION, NO_FFN = "model.attention=uniform", "model.ffn=none"
NOT_THERE = ": no model.ffn_dim can be set in it: model.ffn_dim=1 has no effect with"


def solved(base, *arms, budget="parameters", by="model.ffn_dim"):
    configs = {arm or "baseline": ablate.compose(*base, *arm.split()) for arm in ("", *arms)}
    return match(configs, baseline="baseline", budget=budget, by=by)


def cost(base, *typed, budget="parameters"):
    """As a run counts it."""
    cfg = ablate.compose(*base, *typed)
    if budget == "parameters":
        return count_parameters(build(cfg))["total"]
    return count_flops(cfg, on_meta(cfg, build_data(cfg)))


@pytest.mark.parametrize("budget", ["parameters", pytest.param("flops", marks=pytest.mark.slow)])
def test_the_nearest_width_is_set(tmp_path, budget):
    """Against every width there is: the cost is too low or too high, the nearest above or below."""
    base = overrides(tmp_path, "model.dim=32")
    target = cost(base, budget=budget)
    arms = [ATTENTION, "model.ffn=geglu model.depth=2", *["pos_enc=none"] * (budget != "flops")]
    for arm, found in solved(base, *arms, budget=budget).items():
        own = [*base, *arm.split()]
        after = cost(own, found.override, budget=budget)
        assert (found.target, found.after) == (target, after)
        assert found.before == cost(own, budget=budget)
        assert abs(after / target - 1) <= 0.02 < abs(found.before / target - 1)
        for width in range(found.width - 2, found.width + 3):
            other = cost(own, f"model.ffn_dim={width}", budget=budget)
            assert abs(other - target) >= abs(after - target)
        assert f"model.ffn_dim={found.width}: {after:,}" in str(found)
        arms.remove(arm)
    assert arms == []


def test_what_needs_no_width_or_cannot_be_built_is_left_alone(tmp_path):
    bad = "pos_enc=t5 pos_enc.buckets=32 pos_enc.max_distance=4"
    arms = ("model.ffn=swiglu", "model.norm=post", "model.attention=additive", bad)
    assert solved(overrides(tmp_path, "model.depth=2", "model.dim=32"), *arms) == {}
    near = "model.norm=post model.residual=false"
    assert solved(overrides(tmp_path, NO_FFN), near, by="model.heads") == {}


def test_widths_that_do_not_fit_are_passed_over(tmp_path):
    """dim is a multiple of 3 heads, each of an even width for the rotation."""
    base = overrides(tmp_path, "model.heads=3", "model.dim=192", "pos_enc=rotary")
    found = solved(base, NO_FFN, by="model.dim")[NO_FFN]
    assert (found.width > 192, found.width % 6) == (True, 0)
    assert cost(base, NO_FFN, found.override) == found.after


def test_a_model_of_pairs(tmp_path):
    (found,) = solved(pairs(tmp_path, "model.dim=32"), "model.cell=lstm", by="model.dim").values()
    assert found.width < 32
    assert abs(found.after / found.target - 1) <= 0.02


@pytest.mark.parametrize(
    ("arm", "by", "parts"),
    [
        (
            NO_FFN,
            "model.ffn_dim",
            [
                "arm 'model.ffn=none' (",
                ": no model.ffn_dim can be set in it: model.ffn_dim=1 has no",
            ],
        ),
        # The second arm has a width, but not a number of heads, that makes it match.
        (NO_FFN, "model.heads", ["model.heads has no influence on it", f"'{ATTENTION}'"]),
        ("model.ffn_dim=99", "model.ffn_dim", ["it sets study.match_by=model.ffn_dim itself"]),
        ("model.depth=40", "model.ffn_dim", ["the nearest is model.ffn_dim=1 with ", " above"]),
    ],
)
def test_what_cannot_be_matched_is_refused(tmp_path, arm, by, parts):
    with refused(*parts):
        solved(overrides(tmp_path), arm, ATTENTION, by=by)


def test_only_a_whole_number_of_the_model_can_be_matched_by(tmp_path):
    cfg = ablate.compose(*overrides(tmp_path))
    for by in ("model.fn_dim", "optimizer.lr", "model.dropout", "data.seq_len"):
        with refused(f"match_by={by}: must be a whole number ", "model.ffn_dim"):
            require_width(by, [cfg], matched=True)
    require_width("model.ffn_dim", [cfg], matched=True)


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
