"""Paired statistics against scipy, statsmodels, published data sets and cases by hand."""

import math
import re
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from refusals import refused
from scipy import stats as scipy_stats
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.power import TTestPower

from ablate.study.analysis import stats
from ablate.study.analysis.compare import compare, decide, holm
from ablate.study.analysis.pairs import pair
from ablate.study.analysis.verdict import Verdict
from ablate.study.numbers import certain, probability

# Student 1908, the hours of sleep that ten people gained by the second drug over the first.
SLEEP = [1.2, 2.4, 1.3, 1.3, 0.0, 1.0, 1.8, 0.8, 4.6, 1.4]
# Darwin 1876, crossed minus self-fertilised maize, eighths of an inch: Fisher 1935, section 21.
MAIZE = [49, -67, 8, 16, 6, 23, 28, 41, 14, 29, 56, 24, 75, 60, -48]
LEVEL = 0.05


def against_zero(*arms):
    """Values of arms whose differences from the baseline are the given ones."""
    size = max(map(len, arms))
    values = {"baseline": dict.fromkeys(range(size), 0.0)}
    return values | {f"arm{i}": dict(enumerate(map(float, d))) for i, d in enumerate(arms)}


def flip(differences):
    differences = np.array(differences, dtype=float)
    return stats.sign_flip(differences, np.zeros(len(differences)))


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


# Sign flips


def test_sign_flip_by_hand():
    for differences, p in (
        ([1, 2, 3], 2 / 8),
        ([-1, 2, 3], 4 / 8),  # sums of +-6, +-4, +-2, 0: four are as far off as 4
        ([0, 1, 1], 4 / 8),  # a zero doubles each pattern
        ([1, 1, -1], 1.0),  # every pattern sums to 1 or 3
        ([0, 0, 0, 0], 1.0),
        ([5], 1.0),
        (SLEEP, 4 / 1024),  # nothing below zero, and one zero
    ):
        assert flip(differences).p == flip([-d for d in differences]).p == p


def test_sign_flip_is_scipys_where_nothing_ties():
    differences = np.random.default_rng(12).normal(0.4, 1, 12)
    theirs = scipy_stats.permutation_test(
        (differences,), np.sum, permutation_type="samples", n_resamples=np.inf, vectorized=True
    )
    assert flip(differences).p == pytest.approx(theirs.pvalue, rel=1e-12)


def test_ties_count_in_float32_as_they_do_in_integers():
    rng = np.random.default_rng(0)
    for _ in range(20):
        baseline, arm = rng.integers(0, 360, (2, 7))
        sums = np.array(list(product((1, -1), repeat=7))) @ (arm - baseline)
        shares = {
            name: {seed: float(np.float32(right / 360)) for seed, right in enumerate(counts)}
            for name, counts in (("arm", arm), ("baseline", baseline))
        }
        (found,) = pair(shares, "baseline")
        exact = np.mean(abs(sums) >= abs(sums[0]))
        assert stats.sign_flip(found.differences, found.grain).p == exact


def test_fishers_own_example_has_his_p_and_more_than_twelve_pairs_say_their_resolution():
    """Fisher 1935, section 21: 1,726 of 32,768 patterns; t 2.148 with p 0.0497."""
    found, exact = flip(MAIZE), 1726 / 2**15
    assert abs(found.p - exact) < 4 * 2 * math.sqrt(exact / 2 / stats.FLIPS)
    assert found.smallest == 2 / (stats.FLIPS + 1)
    assert stats.t_p(np.array(MAIZE, dtype=float)) == pytest.approx(0.0497, abs=5e-5)
    assert flip(np.abs(MAIZE)).p == found.smallest


# Intervals and effects


def test_students_sleep():
    """t 4.0621, p 0.002833, 95 % 0.7001 to 2.4599: R's t.test(extra ~ group, paired = TRUE). The
    bootstrap is scipy's, and the same every time."""
    found = only(*SLEEP)
    assert found.difference == pytest.approx(1.58)
    assert found.tests.t_p == pytest.approx(0.002833, abs=5e-7)
    ends = (found.t_interval.low, found.t_interval.high)
    assert ends == pytest.approx((0.7001142, 2.4598858), abs=1e-6)
    tests = found.tests
    assert (tests.rests_on, tests.p, found.caution) == ("sign-flip", 4 / 1024, "")
    backwards = {arm: dict(reversed(own.items())) for arm, own in against_zero(SLEEP).items()}
    assert compare(backwards, baseline="baseline", mode="min").arms[0].bootstrap == found.bootstrap
    other = scipy_stats.bootstrap((SLEEP,), np.mean, n_resamples=40_000, method="BCa", rng=1)
    ends = (found.bootstrap.low, found.bootstrap.high)
    assert ends == pytest.approx([*other.confidence_interval], abs=0.05)


def test_effect_is_unbiased_with_five_seeds():
    # gamma(2) / (sqrt(2) gamma(3/2)) = sqrt(2 / pi)
    by_hand = 3 / math.sqrt(2.5) * math.sqrt(2 / math.pi)
    assert stats.effect_size(np.arange(1.0, 6.0)) == pytest.approx(by_hand)


def test_equivalence_is_two_one_sided_t_tests():
    found = np.random.default_rng(3).normal(0.2, 1, 8)
    sides = [
        scipy_stats.ttest_1samp(found, bound, alternative=side).pvalue
        for bound, side in ((-1.0, "greater"), (1.0, "less"))
    ]
    assert stats.equivalent_p(found, 1.0) == pytest.approx(max(sides))


@pytest.mark.parametrize("count", [1, 7])
def test_holm_is_statsmodels(count):
    """With ties."""
    ps = np.random.default_rng(count).beta(0.3, 1, count).round(1)
    assert holm(list(ps)) == pytest.approx(list(multipletests(ps, method="holm")[1]))


@pytest.mark.parametrize("family", [1, 5])
def test_seeds_needed_are_statsmodels(family):
    """And to reach the level at all by signs, 2^(1 - n) arms-fold: 6 seeds give 1 / 32."""
    assert [stats.seeds_to_reach(arms) for arms in (1, 2, 5, 10**6)] == [6, 7, 8, None]
    differences = np.array([0.5, -0.7, 1.2, 0.6, 0.9])
    effect = stats.effect_size(differences)
    n = TTestPower().solve_power(effect, alpha=LEVEL / family, power=0.8)
    assert stats.seeds_needed(differences, family) == math.ceil(n)
    assert stats.seeds_needed(np.array([1.0, 1.1]), 1) == 6
    assert stats.seeds_needed(np.array([-1.0, 1.0, 0.001]), 1) is None
    within = np.array([0.5, -0.7, 1.2, 0.3, -0.1])  # its standard error: 0.24 and 0.32
    assert stats.seeds_needed(within, 1) is None


# Verdicts


def test_mode_says_which_way_is_better():
    up = (1.0, 1.1, 0.9, 1.05, 1.0)
    down = [-d for d in up]
    found = [only(*d, mode=m).verdict for d in (up, down) for m in ("min", "max")]
    assert [one.kind for one in found] == ["worse", "better", "better", "worse"]
    assert found[1].words() == found[2].words()


def test_five_seeds_are_warned_about_and_still_show_what_is_large():
    """Twelve arms of three standard deviations and more: every one, with the right sign."""
    rng = np.random.default_rng(0)
    arms = [sign * rng.normal(6, 1, 5) for sign in [1, -1] * 6]
    found = compare(against_zero(*arms), baseline="baseline", mode="min")
    assert [each.verdict.kind for each in found.arms] == ["worse", "better"] * 6
    assert {each.tests.rests_on for each in found.arms} == {"t"}
    (warning,) = found.warnings
    assert "5 seeds: sign-flip p at least 0.0625" in warning
    assert "from 9 seeds on" in warning


def test_too_few_seeds_and_signs_that_differ_say_nothing_however_large_the_difference():
    found = only(100.0, 100.1)
    assert (found.verdict.kind, found.verdict.seeds_needed) == ("too few seeds", None)
    assert found.verdict.words().startswith("too few seeds for a verdict (100.0 worse, ")
    assert "too few for any verdict" in found.caution
    differences = (0.8, 1.0, 1.1, 0.9, -0.01)
    assert scipy_stats.ttest_1samp(differences, 0).pvalue < LEVEL
    found = only(*differences)
    assert (found.tests.p, found.verdict.kind) == (4 / 32, "no difference shown")


def test_equal_differences_have_no_interval():
    same, moved = (only(*[c] * 5) for c in (0.0, 1.0))
    assert same.verdict.kind == "no difference shown"
    assert same.verdict.words() == "no difference: the same value in each of 5 seeds"
    assert (moved.verdict.kind, moved.tests.p) == ("worse", 1 / 256)
    assert moved.verdict.words() == "worse by 1 every time (5 seeds, p 0.0039)"
    assert moved.t_interval is moved.bootstrap is None
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
}


def false_findings(draw, n, arms, studies=1000):
    """Studies, of arms that do nothing, in which any verdict is better or worse."""
    rng = np.random.default_rng(n * 100 + arms)
    found = 0
    for _ in range(studies):
        values = rng.normal(size=n) + draw(rng, (arms + 1, n))
        pairs = pair({str(arm): dict(enumerate(own)) for arm, own in enumerate(values)}, "0")
        found += any(tests.differs for tests in decide(pairs))
    return found


def assert_within_level(found, studies=1000):
    """No more than chance allows (one in a thousand) at a rate of exactly the level."""
    assert scipy_stats.binomtest(found, studies, LEVEL, alternative="greater").pvalue > 1e-3, found


QUICK = [("normal", 5, 1), ("normal", 6, 1)]


@pytest.mark.parametrize(
    ("noise", "n", "arms"),
    [
        pytest.param(*case, marks=() if case in QUICK else pytest.mark.slow)
        for case in product(DRAWS, (2, 3, 4, 5, 6, 10), (1, 5))
    ],
)
def test_noise_is_called_a_difference_no_more_often_than_the_level(noise, n, arms):
    assert_within_level(false_findings(DRAWS[noise], n, arms))


@pytest.mark.slow
@pytest.mark.parametrize("n", [3, 5, 10])
def test_a_difference_of_the_margin_is_called_equivalent_no_more_often_than_the_level(n):
    rng = np.random.default_rng(n)
    found = 0
    for _ in range(1000):
        tested = decide(pair(against_zero(*rng.normal(1, 0.3, (3, n))), "baseline"), margin=1.0)
        found += any(tests.equivalent for tests in tested)
    assert_within_level(found)
