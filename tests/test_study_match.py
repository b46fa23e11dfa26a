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


def solved(base, *arms, budget="parameters", by="model.ffn_dim"):
    configs = {arm or "baseline": ablate.compose(*base, *arm.split()) for arm in ("", *arms)}
    return match(configs, baseline="baseline", budget=budget, by=by)


def cost(cfg, budget):
    """As a run counts it."""
    if budget == "parameters":
        return count_parameters(build(cfg))["total"]
    return count_flops(cfg, on_meta(cfg, build_data(cfg)))


@pytest.mark.parametrize("budget", ["parameters", pytest.param("flops", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "arm",
    [
        "model.attention=uniform",
        pytest.param("model.ffn=geglu model.depth=2", marks=pytest.mark.slow),
    ],
)
def test_the_nearest_width_is_set(tmp_path, budget, arm):
    """Against every width there is; the arms have too few and too many."""
    base = overrides(tmp_path, "model.dim=32")
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


def test_what_needs_no_width_or_cannot_be_built_is_left_alone(tmp_path):
    bad = "pos_enc=t5 pos_enc.buckets=32 pos_enc.max_distance=4"
    arms = ("model.ffn=swiglu", "model.norm=post", "model.attention=additive", bad)
    assert solved(overrides(tmp_path, "model.depth=2", "model.dim=32"), *arms) == {}
    near = "model.norm=post model.residual=false"
    assert solved(overrides(tmp_path, "model.ffn=none"), near, by="model.heads") == {}


def test_widths_that_do_not_fit_are_passed_over(tmp_path):
    """dim is a multiple of 3 heads, each of an even width for the rotation."""
    base = overrides(tmp_path, "model.heads=3", "model.dim=192", "pos_enc=rotary")
    found = solved(base, "model.ffn=none", by="model.dim")["model.ffn=none"]
    assert found.width > 192
    assert found.width % 6 == 0
    cfg = ablate.compose(*base, "model.ffn=none", found.override)
    assert cost(cfg, "parameters") == found.after


def test_a_model_of_pairs(tmp_path):
    found = solved(pairs(tmp_path, "model.dim=32"), "model.cell=lstm", by="model.dim")
    assert found["model.cell=lstm"].width < 32
    assert abs(found["model.cell=lstm"].after / found["model.cell=lstm"].target - 1) <= 0.02


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
        ("model.depth=40", "model.ffn_dim", r"the nearest is model\.ffn_dim=1 with .* above"),
    ],
)
def test_what_cannot_be_matched_is_refused(tmp_path, arm, by, message):
    with pytest.raises(UserError, match=message) as caught:
        solved(overrides(tmp_path), arm, "model.attention=uniform", by=by)
    assert "\n" not in str(caught.value)
    # Which has a width, but not a number of heads, that makes it match.
    assert ("'model.attention=uniform'" in str(caught.value)) == (by == "model.heads")


def test_only_a_whole_number_of_the_model_can_be_matched_by(tmp_path):
    cfg = ablate.compose(*overrides(tmp_path))
    for by in ("model.fn_dim", "optimizer.lr", "model.dropout", "data.seq_len"):
        said = rf"match_by={by}: must be a whole number .* model\.ffn_dim"
        with pytest.raises(UserError, match=said):
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
