"""Main effects and interactions against published examples, statsmodels' anova and by hand."""

import dataclasses
from itertools import product

import numpy as np
import pandas as pd
import pytest
from make_study import arm, make_study
from scipy import stats
from statsmodels.stats.anova import AnovaRM

from ablate import load_study
from ablate.study.analysis.collect import collect
from ablate.study.analysis.confounding import inestimable
from ablate.study.analysis.crossed import in_short
from ablate.study.analysis.effects import effects
from ablate.study.analysis.rows import assemble
from ablate.study.analysis.stats import holm

# Box, Hunter and Hunter 2005, section 5.3: yield of a pilot plant, two runs of each cell, in grams.
PLANT = {"T": ["160", "180"], "C": ["20", "40"], "K": ["A", "B"]}
YIELDS = [(59, 61), (74, 70), (50, 58), (69, 67), (50, 54), (81, 85), (46, 44), (79, 81)]
TWO, THREE = ({name: ["-", "+"] for name in "ABC"[:count]} for count in (2, 3))


def factorial(factors, value, seeds=1):
    """Runs of every cell: value(levels as indices, seed)."""
    cells = product(*(range(len(options)) for options in factors.values()))
    return [
        (dict(zip(factors, options, strict=True)), seed, float(value(cell, seed)))
        for cell, options in zip(cells, product(*factors.values()), strict=True)
        for seed in range(seeds)
    ]


def found_in(factors, value, seeds=1):
    return effects(factorial(factors, value, seeds), factors=factors, mode="min")


def named(found):
    return {"".join(each.factors): each for each in found.effects}


def test_the_pilot_plant_has_the_published_effects():
    """Table 5.3: T 23.0, C -5.0, K 1.5, T x C 1.5, T x K 10.0, C x K 0.0."""
    runs = factorial(PLANT, lambda cell, s: YIELDS[cell[0] + 2 * cell[1] + 4 * cell[2]][s], 2)
    found = effects(runs, factors=PLANT, mode="max")
    published = {"T": 23.0, "C": -5.0, "K": 1.5, "TC": 1.5, "TK": 10.0, "CK": 0.0}
    ours = named(found)
    assert {name: each.effect for name, each in ours.items()} == pytest.approx(published)
    assert ours["T"].means == {("160",): 52.75, ("180",): 75.75}
    assert ours["TK"].means[("180", "B")] == 81.5
    assert found.warnings == ("no interval and no p of fewer than 3 seeds",)


def greenhouse_geisser(table, f):
    """The p of an F, by the elements of the covariance of the options (Winer 1971, p. 523)."""
    (seeds, count), s = table.shape, np.cov(table, rowvar=False)
    above = (count * (np.diag(s).mean() - s.mean())) ** 2
    rows = (s.mean(axis=0) ** 2).sum()
    below = (s**2).sum() - 2 * count * rows + count**2 * s.mean() ** 2
    epsilon = above / ((count - 1) * below)
    return stats.f.sf(f, epsilon * (count - 1), epsilon * (count - 1) * (seeds - 1))


def test_effects_are_those_of_repeated_measures_over_the_seeds_with_every_run():
    factors = {"a": ["x", "y", "z"], "b": ["off", "on"]}
    rng = np.random.default_rng(0)
    runs = factorial(factors, lambda cell, seed: cell[0] * cell[1] + seed + rng.normal(), 5)
    runs = [(o, s, None if (s, o["a"]) == (2, "z") else y) for o, s, y in runs]
    refused = effects(runs, factors=factors, mode="min")
    assert (refused.effects, refused.warnings) == ((), ("nothing estimated: runs are missing",))
    found = effects(runs, factors=factors, mode="min", allow_missing=True)
    assert found.warnings == ("runs without a number: 2; seeds with every run: 4",)
    assert [each.df for each in found.effects] == [2, 1, 2]

    frame = pd.DataFrame([{**o, "seed": s, "y": y} for o, s, y in runs if s != 2])
    theirs = AnovaRM(frame, "y", "seed", within=["a", "b"]).fit().anova_table
    a, b, both = found.effects
    assert b.p == pytest.approx(theirs["Pr > F"]["b"])
    table = frame.pivot_table("y", "seed", "a").to_numpy()
    assert a.p == pytest.approx(greenhouse_geisser(table, theirs["F Value"]["a"]))
    steps = frame.pivot(index="seed", columns=["a", "b"], values="y").T.groupby("a").diff()
    table = steps.dropna().T.to_numpy()  # of b, at each option of a
    assert both.p == pytest.approx(greenhouse_geisser(table, theirs["F Value"]["a:b"]))
    of_seeds = stats.ttest_1samp(table.mean(axis=1), 0)
    assert (a.effect, b.effect) == (None, pytest.approx(table.mean()))
    interval = of_seeds.confidence_interval(1 - 0.05 / (1 + (b.p <= a.p)))  # Holm's level
    assert (b.interval.low, b.interval.high) == pytest.approx((interval.low, interval.high))
    for order in (1, 2):  # Holm runs over each separately
        family = [each for each in found.effects if len(each.factors) == order]
        assert [e.p_holm for e in family] == pytest.approx(holm([e.p for e in family]))


@pytest.mark.ci
def test_an_effect_that_differs_from_seed_to_seed_is_not_seen_twice_in_two_arms():
    """1,000 studies of 4 seeds, whose effect of A has the mean 0; chance of one in a thousand."""
    rng, shown = np.random.default_rng(0), 0
    for _ in range(1000):
        of_seed, noise = rng.normal(size=4), 0.2 * rng.normal(size=(2, 2, 4))
        found = found_in(TWO, lambda c, s, a=of_seed, e=noise: c[0] * a[s] + e[*c, s], 4)
        shown += named(found)["A"].p <= 0.05
    assert 29 <= shown <= 73


def test_an_interaction_whose_cells_are_missing_is_taken_as_zero():
    """Three of four cells: both main effects, against the baseline."""
    factors = {"a": ["0", "1"], "b": ["0", "1"]}
    cells = [dict(zip("ab", pair, strict=True)) for pair in ("00", "01", "10")]
    says = "a × b cannot be told apart from other effects, since cells are missing, and is taken"  # noqa: RUF001
    (line,) = inestimable(cells, factors)
    assert line.startswith(says)
    runs = [(cell, s, 3.0 * int(cell["a"]) + s) for cell in cells for s in range(3)]
    found = effects(runs, factors=factors, mode="min")
    assert line in found.warnings
    assert [effect.effect for effect in found.effects] == pytest.approx([3.0, 0.0])
    assert inestimable([*cells, {"a": "1", "b": "1"}], factors) == []


def test_factors_that_move_together_or_never_are_not_estimated():
    factors = {"a": ["0", "1"], "b": ["0", "1"], "c": ["0", "1"]}
    runs = [({"a": x, "b": x, "c": "0"}, s, float(int(x) + s % 2)) for x in "01" for s in range(3)]
    found = effects(runs, factors=factors, mode="min")
    (effect,) = found.effects
    assert effect.factors == ("a",)
    assert "c=1 has no result" in found.warnings
    assert any(line.startswith("b cannot be told apart") for line in found.warnings)


def test_one_seed_is_not_judged_and_equal_effects_are_as_equal_differences():
    alone = found_in(TWO, lambda c, s: 3 * c[0] * c[1])
    assert {(each.p, each.interval) for each in alone.effects} == {(None, None)}
    assert alone.warnings == ("no interval and no p of fewer than 3 seeds",)
    assert "not testable" in alone.effects[0].words()
    assert named(alone)["AB"].effect == pytest.approx(1.5)
    equal = named(found_in({**TWO, "C": ["x", "y", "z"]}, lambda c, s: c[0] + c[2] / 3 + s, 5))
    ps = {"A": 4**-4, "B": 1, "C": 4**-4, "AB": 1, "AC": 1, "BC": 1}
    assert {name: each.p for name, each in equal.items()} == pytest.approx(ps)
    assert (equal["A"].effect, equal["B"].effect) == (pytest.approx(1), 0)


def test_of_an_option_without_a_number_the_others_are_estimated():
    rng = np.random.default_rng(0)
    factors = {"norm": ["pre", "post", "none"], "pos": ["a", "b"], "ffn": ["x", "y"]}
    runs = factorial(factors, lambda c, s: c[0] + rng.normal(), 4)
    diverged = lambda o: o["norm"] == "none" or o["ffn"] == "y"  # noqa: E731
    runs = [(o, s, None if diverged(o) else y) for o, s, y in runs]
    found = effects(runs, factors=factors, mode="min", allow_missing=True)
    assert [each.factors for each in found.effects] == [("norm",), ("pos",), ("norm", "pos")]
    lines = ["norm=none has no result", "ffn=y has no result"]
    assert [*found.warnings[:2]] == lines
    left = {"norm": ["pre", "post"], "pos": ["a", "b"]}
    runs = [({k: o[k] for k in left}, s, y) for o, s, y in runs if y is not None]
    assert found.effects == effects(runs, factors=left, mode="min").effects


def test_words_of_effects():
    """Xiong et al. 2020: without warm-up post-norm loses, with it hardly."""
    factors = {"norm": ["pre", "post"], "warmup": ["on", "off"]}
    rng = np.random.default_rng(0)
    value = lambda c, s: 2 + 0.3 * c[0] * c[1] + 0.01 * rng.normal() + s / 9  # noqa: E731
    found = found_in(factors, value, 5).effects[-1]
    assert found.words().startswith(
        "norm × warmup: the step from pre to post is 0.31 worse"  # noqa: RUF001
        " at warmup=off than at warmup=on (95 % 0.2"
    )
    assert "0.31 better at warmup=off" in dataclasses.replace(found, mode="max").words()
    norm, _, both = found_in(factors, lambda c, s: rng.normal(), 3).effects
    assert norm.words().startswith("norm: no difference shown between pre and post (")
    assert "no interaction shown" in both.words()


@pytest.mark.slow
def test_noise_is_called_an_effect_no_more_often_than_the_level():
    """Three main effects, Holm over them: 300 studies, and chance of one in a thousand."""
    noise, found = np.random.default_rng(0).normal(size=(300, 2, 2, 2, 3)), 0
    for own in noise:
        each = named(found_in(THREE, lambda c, s, own=own: own[*c, s], 3))
        found += any(each[name].p_holm <= 0.05 for name in THREE)
    assert 1 <= found <= 28


def test_a_factorial_study_with_a_cell_left_out_has_its_main_effects(tmp_path):
    arms = {
        "baseline": arm([1.0, 1.1, 1.05]),
        "model.norm=post": arm([1.2, 1.3, 1.24]),
        "model.heads=4": arm([1.0, 1.11, 1.06]),
        "model.heads=4 model.norm=post": arm([1.21, 1.3, 1.25]),
    }
    # 3 was illegal everywhere.
    factors = {"model.norm": {"pre": [], "post": []}, "model.heads": {"3": [], "2": [], "4": []}}
    plan = {"factors": factors, "own": {"model.norm": "pre", "model.heads": "2"}}
    folder = make_study(tmp_path / "crossed", arms, design="factorial", **plan)
    found = assemble(collect(folder)).crossed
    norm, heads, both = found.effects
    assert norm.effect == pytest.approx(0.197, abs=0.001)
    assert heads.means.keys() == {("2",), ("4",)}
    assert both.options == (("pre", "post"), ("2", "4"))
    assert found.warnings == ()
    assert load_study(folder).report["effects"][0].startswith("model.norm: post worse than pre")


def test_a_single_factor_has_no_main_effects_beside_its_table(tmp_path):
    arms = {
        "baseline": arm([1.0, 1.1, 1.05]),
        "norm=post": arm([1.2, 1.3, 1.24]),
        "norm=none": arm([1.3, 1.4, 1.31]),
    }
    plan = {"factors": {"norm": {"pre": [], "post": [], "none": []}}, "own": {"norm": "pre"}}
    study = make_study(tmp_path / "one", arms, design="factorial", **plan)
    assert assemble(collect(study)).crossed is None


@pytest.mark.parametrize(("sign", "kind"), [(1, "worse"), (-1, "better")])
def test_a_cell_that_differs_without_an_effect_is_explained(tmp_path, sign, kind):
    """The noise of all cells tells it from the baseline; an effect has two degrees of freedom."""
    base = [1.50, 1.93, 1.09]
    moved = {
        "baseline": [0.0, 0.0, 0.0],
        "pos_enc=none": [0.025, 0.025, -0.05],
        "model.norm=post": [-0.025, 0.05, -0.025],
        "pos_enc=none model.norm=post": [0.1, 0.125, 0.075],
    }
    arms = {
        name: arm([b + sign * m for b, m in zip(base, by, strict=True)])
        for name, by in moved.items()
    }
    report = assemble(collect(make_study(tmp_path / "crossed", arms, design="factorial")))
    kinds = {report.labels[row.arm.name]: row.kind for row in report.others}
    assert kinds["pos_enc=none norm=post"] == kind
    assert not any(effect.shown for effect in report.crossed.effects)
    *_, last = in_short(report)
    assert last.startswith(
        "pos_enc=none norm=post: different from the baseline, although no effect of "
    )
    (mark,) = (line for line in report.remarks if f"({kind} by 0.1)" in line)
    assert "Smaller than the baseline's standard deviation between seeds, 0.42" in mark
