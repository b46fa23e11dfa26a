"""Paired statistics against scipy, statsmodels, published data sets and cases by hand."""

import math
import re
from dataclasses import replace
from itertools import product

import numpy as np
import pandas as pd
import pytest
from refusals import refused
from scipy import stats as scipy_stats
from statsmodels.formula.api import ols
from statsmodels.stats.multitest import multipletests

from ablate.study.analysis import power, stats
from ablate.study.analysis.compare import Verdict, compare, decide
from ablate.study.analysis.noise import Noise, Part, error
from ablate.study.analysis.pairs import pair
from ablate.study.analysis.stats import holm, holm_levels
from ablate.study.numbers import certain, probability

# Student 1908, the hours of sleep that ten people gained by the second drug over the first.
SLEEP = [1.2, 2.4, 1.3, 1.3, 0.0, 1.0, 1.8, 0.8, 4.6, 1.4]
LEVEL = 0.05


def against_zero(*arms):
    """Values of arms whose differences from the baseline are the given ones."""
    size = max(map(len, arms))
    values = {"baseline": dict.fromkeys(range(size), 0.0)}
    return values | {f"arm{i}": dict(enumerate(map(float, d))) for i, d in enumerate(arms)}


def study(y):
    """Values of arms "0", "1", ... from an array of arms and seeds."""
    return {str(arm): dict(enumerate(map(float, own))) for arm, own in enumerate(y)}


def minus_baseline(noise, y, arm=1):
    """The error of an arm's difference from the baseline "0"."""
    return error(y[arm] - y[0], noise.parts({str(arm): 1.0, "0": -1.0}))


def only(*differences, mode="min", **options):
    return compare(against_zero(differences), baseline="baseline", mode=mode, **options).arms[0]


# Pairs


def test_pairs_are_made_by_seed_whatever_the_order():
    values = {"b": {1: 2.0, 0: 1.0, 2: 6.0}, "a": {2: 6.5, 0: 1.25, 1: 2.125}}
    (found,) = pair(values, "b")
    assert (found.seeds, found.differences.tolist()) == ((0, 1, 2), [0.25, 0.125, 0.5])
    base = compare(values, baseline="b", mode="min").summaries["b"]
    assert (base.n, base.mean, base.sd) == (3, 3.0, pytest.approx(math.sqrt(14 / 2)))


@pytest.mark.parametrize("nothing", [None, math.nan, math.inf])
def test_a_run_without_a_number_is_missing_not_averaged(nothing):
    values = {"b": dict.fromkeys(range(4), 1.0), "a": {0: 2.0, 1: 2.5, 2: nothing, 3: 2.25}}
    found = compare(values, baseline="b", mode="min")
    assert found.arms == ()
    allowed = compare(values, baseline="b", mode="min", allow_missing=True)
    assert allowed.arms[0].difference == pytest.approx(1.25)
    assert "3 of 4 seeds" in allowed.arms[0].verdict.words()
    assert "'a' has no result for seed 2" in allowed.warnings
    values |= {"b": {0: nothing, 1: 1.0}, "a": {0: 1.0, 1: 1.0, 7: 1.0}}
    (found,) = pair(values, "b")
    assert found.words() == "the baseline has no result for seeds 0, 7"


def test_a_margin_of_nothing_is_refused():
    with refused("study.margin=0"):
        only(1, 2, 3, margin=0)


# Noise


def layout(y):
    """The arms, seeds and values of an array, as statsmodels wants them; NaN is missing."""
    arms, seeds = np.indices(y.shape)
    there = np.isfinite(y)
    return pd.DataFrame({"arm": arms[there], "seed": seeds[there], "y": y[there]})


def test_the_error_is_that_of_least_squares_with_arms_and_seeds_also_where_runs_are_missing():
    y = np.random.default_rng(4).normal(size=(4, 5)) + np.arange(5)
    fit = ols("y ~ C(arm) + C(seed)", layout(y)).fit()
    test = fit.t_test("C(arm)[T.1] = 0")
    noise = Noise.of(study(y), "0")
    assert not noise.noisy
    found = minus_baseline(noise, y)
    assert found.df == fit.df_resid == 12
    assert found.se == pytest.approx(test.sd.item())
    difference = y[1].mean() - y[0].mean()
    assert found.p(difference) == pytest.approx(test.pvalue.item())
    bounds = found.interval(difference, LEVEL)
    assert (bounds.low, bounds.high) == pytest.approx(test.conf_int(LEVEL)[0])
    y[2, 3] = y[3, 0] = np.nan
    fit = ols("y ~ C(arm) + C(seed)", layout(y)).fit()
    pooled = Noise.of(study(y), "0").pooled
    assert (pooled.variance, pooled.df) == (pytest.approx(fit.mse_resid), fit.df_resid)


def test_a_single_arm_has_the_paired_t_test_of_student():
    """t 4.0621, p 0.002833, 95 % 0.7001 to 2.4599: R's t.test(extra ~ group, paired = TRUE)."""
    found = only(*SLEEP)
    assert found.difference == pytest.approx(1.58)
    assert found.tests.p == found.p == pytest.approx(0.002833, abs=5e-7)
    assert (found.interval.low, found.interval.high) == pytest.approx((0.7001142, 2.4598858))


def test_a_noisy_baseline_is_not_pooled_with_the_arms():
    """Welch's test of one mean against the mean of the others, whose noise is alike."""
    y = np.random.default_rng(4).normal(size=(6, 4)) * np.array([8, 1, 1, 1, 1, 1])[:, None]
    noise = Noise.of(study(y), "0")
    assert [*noise.noisy] == ["0"]
    arms = ols("y ~ C(arm) + C(seed)", layout(y[1:])).fit().mse_resid
    base = np.var(y[0] - y[1:].mean(axis=0), ddof=1) / (1 + 1 / 5)
    found = minus_baseline(noise, y)
    spread = np.var(y[1] - y[0], ddof=1)
    assert found.se == pytest.approx(math.sqrt(max(arms + base, spread) / 4))
    assert found.df == pytest.approx((arms + base) ** 2 / (arms**2 / 12 + base**2 / 3))
    (warning,) = compare(study(y), baseline="0", mode="min").warnings
    assert warning.startswith("the runs of '0' vary ")


def test_an_arm_far_noisier_than_the_others_has_its_own_spread_and_theirs_is_without_it():
    y = np.random.default_rng(8).normal(size=(6, 4)) * np.array([1, 1, 1, 40, 1, 1])[:, None]
    noise = Noise.of(study(y), "0")
    assert [*noise.noisy] == ["3"]
    t = scipy_stats.ttest_rel(y[3], y[0])
    found = minus_baseline(noise, y, 3)
    assert found.p(y[3].mean() - y[0].mean()) == pytest.approx(t.pvalue)
    others = y[[0, 1, 2, 4, 5]]
    assert minus_baseline(noise, y, 1) == minus_baseline(Noise.of(study(others), "0"), others, 1)
    y[4] *= 3
    noise = Noise.of(study(y), "0")
    assert (noise.far, {*noise.noisy}) == ({"3"}, {"3", "4"})
    assert noise.pooled.df == 12
    assert noise.parts({"1": 1.0}) is None  # the seeds do not cancel
    assert noise.parts({"1": 1.0, "3": -1.0}) is None
    y[3] /= 5
    noise = Noise.of(study(y), "0")
    assert ("3" in noise.noisy, noise.far) == (True, frozenset())


def test_an_error_is_never_below_the_spread_of_the_differences():
    rng, below = np.random.default_rng(0), 0
    for _ in range(50):
        y = rng.normal(size=(5, 3))
        noise = Noise.of(study(y), "0")
        own = np.std(y[1] - y[0], ddof=1) / math.sqrt(3)
        below += own > math.sqrt(2 * noise.pooled.variance / 3)
        assert minus_baseline(noise, y).se >= own * (1 - 1e-12)
    assert below


def test_known_noise_is_pooled_with_that_of_the_study():
    y = np.random.default_rng(2).normal(size=(3, 2))
    noise = Noise.of(study(y), "0", Part(2.0, 18))
    alone = Noise.of(study(y), "0").pooled
    assert noise.pooled.df == alone.df + 18 == 20
    assert noise.pooled.variance == pytest.approx((2.0 * 18 + alone.variance * alone.df) / 20)


def test_equivalence_is_two_one_sided_t_tests():
    found = np.random.default_rng(3).normal(0.2, 1, 8)
    sides = [
        scipy_stats.ttest_1samp(found, bound, alternative=side).pvalue
        for bound, side in ((-1.0, "greater"), (1.0, "less"))
    ]
    assert error(found, None).equivalent_p(found.mean(), 1.0) == pytest.approx(max(sides))


@pytest.mark.parametrize("count", [1, 7])
def test_holm_is_statsmodels_and_its_levels_reject_the_same(count):
    """With ties."""
    rng = np.random.default_rng(count)
    for _ in range(20):
        ps = [*rng.beta(0.2, 3, count).round(2)]
        adjusted = holm(ps)
        assert adjusted == pytest.approx([*multipletests(ps, method="holm")[1]])
        levels = holm_levels(ps)
        assert [p <= level for p, level in zip(ps, levels, strict=True)] == [
            p <= LEVEL for p in adjusted
        ]


def test_an_interval_leaves_out_zero_exactly_where_a_difference_is_shown():
    rng, kinds = np.random.default_rng(0), set()
    for _ in range(30):
        y = rng.normal(size=(5, 4)) + rng.choice([0, 2, 4], 5)[:, None]
        for each in compare(study(y), baseline="0", mode="min").arms:
            assert (each.interval.low > 0 or each.interval.high < 0) == each.tests.differs
            kinds.add(each.verdict.kind)
    assert kinds == {"better", "worse", "no difference shown"}


@pytest.mark.ci
@pytest.mark.parametrize(
    ("arms", "seeds", "known_df"), [(1, 5, 0), (5, 3, 0), (4, 5, 0), (5, 2, 20)]
)
def test_the_smallest_effect_is_shown_with_its_power(arms, seeds, known_df):
    rng, shown, studies = np.random.default_rng(arms), 0, 400
    effect = power.smallest_effect(arms, seeds, known_df)
    for _ in range(studies):
        y = rng.normal(size=(arms + 1, seeds))
        y[1] += effect
        known = Part(rng.chisquare(known_df) / known_df, known_df) if known_df else None
        found = minus_baseline(Noise.of(study(y), "0", known), y)
        shown += found.p(y[1].mean() - y[0].mean()) <= LEVEL / arms
    assert scipy_stats.binomtest(shown, studies, power.POWER).pvalue > 1e-3, shown / studies


def test_seeds_are_the_fewest_with_which_the_effect_is_shown():
    needed = power.seeds_for(1.5, 5)
    assert power.smallest_effect(5, needed) <= 1.5 < power.smallest_effect(5, needed - 1)
    assert power.seeds_for(1e-3, 5) is None
    for _ in range(2):  # the same every time
        assert power.seeds_for(4.0, 5) == 4


# Verdicts


def test_mode_says_which_way_is_better():
    up = (1.0, 1.1, 0.9, 1.05, 1.0)
    down = [-d for d in up]
    found = [only(*d, mode=m).verdict for d in (up, down) for m in ("min", "max")]
    assert [one.kind for one in found] == ["worse", "better", "better", "worse"]
    assert found[1].words() == found[2].words()


def test_two_seeds_are_too_few_however_large_the_difference():
    found = compare(against_zero((100.0, 100.1)), baseline="baseline", mode="min")
    (each,) = found.arms
    assert (each.verdict.kind, each.verdict.seeds_needed, each.p) == ("too few seeds", None, None)
    assert each.verdict.words().startswith("too few seeds for a verdict (100.0 worse, ")
    assert found.warnings == ("2 seeds: a verdict needs 3",)


def test_equal_differences_have_no_interval():
    same, moved = (only(*[c] * 5) for c in (0.0, 1.0))
    assert same.verdict.kind == "no difference shown"
    assert same.verdict.words() == "no difference: the same value in each of 5 seeds"
    assert (moved.verdict.kind, moved.tests.p) == ("worse", 1 / 256)
    assert moved.verdict.words() == "worse by 1 every time (5 seeds, p 0.0039)"
    assert moved.interval is None
    kinds = [only(*[c] * 5, margin=0.1).verdict.kind for c in (0, 1)]
    assert kinds == ["equivalent", "worse"]


def test_rounding_of_float32_is_not_a_difference():
    base = {seed: 0.9 + seed / 360 for seed in range(5)}
    arm, shifted = (
        {seed: float(np.float32(value + by)) for seed, value in base.items()} for by in (0, 1 / 360)
    )
    one, other = pair({"b": base, "a": arm, "s": shifted}, "b")
    assert not one.differences.any()
    assert np.ptp(other.differences) == 0


def test_equivalent_wins_over_a_difference_too_small_to_matter():
    differences = (0.010, 0.011, 0.009, 0.010, 0.0105)
    narrow, wide, none = (only(*differences, margin=margin) for margin in (0.0102, 0.1, None))
    kinds = [one.verdict.kind for one in (narrow, wide, none)]
    assert kinds == ["worse", "equivalent", "worse"]
    assert wide.tests.differs
    assert wide.verdict.words().startswith("equivalent within 0.1: worse by 0.0101 (95 %")


@pytest.mark.parametrize("n", [1, 2, 3, 5, 13])
def test_no_number_of_a_comparison_is_nan(n):
    rng = np.random.default_rng(n)
    kinds = [rng.normal(size=n), np.zeros(n), np.ones(n), rng.integers(0, 2, n), np.eye(n)[0]]
    found = compare(against_zero(*kinds), baseline="baseline", mode="max", margin=0.5).arms
    assert len(found) == len(kinds)
    told = f"{found} {[each.verdict.words() for each in found]}"
    assert re.findall(r"\b(?:nan|inf)\b", told) == []


def test_words():
    turned = stats.Interval(-0.0371, -0.0249)
    better = Verdict("better", -0.0312, turned, 5, 5, 0.002, 1, None, None)
    said = "better by 0.031 (95 % 0.025 to 0.037, 5 seeds, p 0.0020)"
    assert better.words() == said
    sized = replace(better, spread=0.02, margin=0.5).words()
    assert "by 0.031, 1.6 times the spread between seeds and 0.06 times the margin (" in sized
    interval = stats.Interval(-0.002, 0.01)
    open_ = Verdict("no difference shown", 0.004, interval, 5, 5, 0.31, 5, None, 23)
    assert open_.words() == (
        "no difference shown (0.004 worse, 95 % -0.002 to 0.010, 5 seeds, Holm p 0.310;"
        " about 23 seeds would be needed)"
    )
    close = replace(open_, interval=stats.Interval(-0.0047, 0.067), loss=0.031)
    assert "95 % -0.005 to 0.07" in close.words()
    assert "95 % 0 to 0.20" in replace(close, interval=stats.Interval(-0.2, 0.0), loss=-1).words()
    equal = replace(open_, kind="equivalent", margin=0.05, p=0.003)
    assert "Holm p of equivalence 0.0030" in equal.words()
    spread = lambda half: stats.Interval(-half, half)  # noqa: E731
    digits = [certain(12.3456, spread(half)) for half in (5.0, 0.5, 0.12, 0.003)]
    assert digits == ["12", "12.3", "12.35", "12.346"]
    assert (certain(-0.0001, spread(0.5)), certain(123456.0, spread(2000.0))) == ("0.0", "123,000")
    assert [probability(p) for p in (0.00001, 0.0023, 0.314)] == ["< 0.0001", "0.0023", "0.314"]


# How often pure noise is called a difference

DRAWS = {
    "normal": lambda rng, size: rng.normal(size=size),
    "heavy tails": lambda rng, size: rng.standard_t(2, size=size),
    "skewed": lambda rng, size: rng.lognormal(0, 1.5, size=size),
    "uniform": lambda rng, size: rng.uniform(size=size),
    "a few right answers": lambda rng, size: rng.binomial(20, 0.9, size=size) / 20,
    "works or fails": lambda rng, size: rng.integers(0, 2, size=size).astype(float),
    "noisy baseline": lambda rng, size: (
        rng.normal(size=size) * np.r_[4, np.ones(size[0] - 1)][:, None]
    ),
    "noisy arm": lambda rng, size: rng.normal(size=size) * np.r_[np.ones(size[0] - 1), 9][:, None],
}


def false_findings(draw, n, arms, studies=600):
    """Studies, of arms that do nothing, in which any verdict is better or worse."""
    rng = np.random.default_rng(n * 100 + arms)
    found = 0
    for _ in range(studies):
        values = study(rng.normal(size=n) + draw(rng, (arms + 1, n)))
        found += any(tests.differs for tests in decide(pair(values, "0"), Noise.of(values, "0")))
    return found


def assert_within(found, studies, level):
    """No more than chance allows (one in a thousand) at a rate of exactly the level."""
    assert scipy_stats.binomtest(found, studies, level, alternative="greater").pvalue > 1e-3, found


QUICK = [("normal", 3, 5), ("noisy baseline", 3, 5)]


@pytest.mark.parametrize(
    ("noise", "n", "arms"),
    [
        pytest.param(*case, marks=() if case in QUICK else pytest.mark.slow)
        for case in product(DRAWS, (2, 3, 5, 10), (1, 5))
    ],
)
def test_noise_is_called_a_difference_no_more_often_than_the_level(noise, n, arms):
    """Six of a hundred at most; benchmarks/verdicts.py counts 20,000 studies of each kind."""
    assert_within(false_findings(DRAWS[noise], n, arms), 600, 0.06)


@pytest.mark.slow
@pytest.mark.parametrize("n", [3, 5, 10])
def test_a_difference_of_the_margin_is_called_equivalent_no_more_often_than_the_level(n):
    rng = np.random.default_rng(n)
    found = 0
    for _ in range(1000):
        values = against_zero(*rng.normal(1, 0.3, (3, n)))
        noise = Noise.of(values, "baseline")
        tested = decide(pair(values, "baseline"), noise, margin=1.0)
        found += any(tests.equivalent for tests in tested)
    assert_within(found, 1000, LEVEL)


# Seeds and items


def test_an_interval_over_seeds_and_items_contains_the_one_way_intervals():
    """Without a difference between items it is the t interval over seeds, and vice versa."""
    values = np.array(SLEEP)
    for table in (np.outer(values, np.ones(7)), np.outer(np.ones(7), values)):
        one, both = stats.t_interval(values), stats.crossed_interval(table)
        assert (both.low, both.high) == pytest.approx((one.low, one.high))
    assert stats.crossed_interval(np.ones((3, 4))) is None
    assert stats.crossed_interval(values[None]) is None


@pytest.mark.ci
@pytest.mark.parametrize("sds", [(0.3, 1, 1), (0, 1, 1), (0.1, 1, 2), (0.3, 0, 1), (0, 0, 1)])
@pytest.mark.parametrize("shape", [(3, 50), (8, 30)])
def test_an_interval_over_seeds_and_items_covers_the_difference(shape, sds):
    """sds: of seeds, of items, and of what is left. A one-way interval misses some."""
    seeds, items = shape
    rng = np.random.default_rng(0)
    of_seed, of_item, rest = (rng.normal(size=(1500, *size)) for size in
                              ((seeds, 1), (1, items), shape))  # fmt: skip
    tables = of_seed * sds[0] + of_item * sds[1] + rest * sds[2]
    found = [stats.crossed_interval(table) for table in tables]
    assert 0.925 <= np.mean([each.low < 0 < each.high for each in found]) <= 0.985
