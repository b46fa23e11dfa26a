"""Scaling laws: what a ladder of sizes tells about an arm, and how sure it is."""

from itertools import product
from pathlib import Path
from runpy import run_path

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import curve_fit

from ablate.run_files import write_json
from ablate.study.analysis import ladder as module
from ablate.study.analysis.noise import Noise, error
from ablate.study.analysis.results import read_rows, study_of
from ablate.study.analysis.scaling_law import Law, effective, predicted
from ablate.study.analysis.stats import Interval

COMPUTE = np.array([1e12, 3e12, 9e12, 27e12, 81e12])


def loss(compute):
    return 1.2 + 0.8 * (compute / 9e12) ** -0.25


def judged(rng, times, *, sizes=5, seeds=3, arms=3, sd=0.006):
    """An arm that is worth so many times the compute, by the noise of its study."""
    compute = COMPUTE[:sizes]
    means = np.stack([loss(compute), *[loss(compute * times)] * arms])
    y = means[..., None] + sd * (
        rng.normal(size=(1, sizes, seeds)) + rng.normal(size=(arms + 1, sizes, seeds))
    )
    differences, errors = y[1] - y[0], []
    for n in range(sizes):
        values = {str(arm): dict(enumerate(y[arm, n])) for arm in range(arms + 1)}
        parts = Noise.of(values, "0").parts({"1": 1.0, "0": -1.0})
        own = differences[n] if parts is None else np.full(seeds, differences[n].mean())
        errors.append(error(own, parts))
    return effective(compute, y[0], differences.mean(1), errors), y


def test_the_fit_is_that_of_scipy():
    rng = np.random.default_rng(0)
    losses = loss(COMPUTE) + 0.002 * rng.normal(size=5)
    law = Law.fitted(COMPUTE, losses[None])
    (floor, scale, rate), _ = curve_fit(
        lambda c, e, b, a: e + b * (c / law.middle) ** -a, COMPUTE, losses, (1.0, 1.0, 0.2)
    )
    # The exponent is searched for in steps of 2 %.
    assert law.losses(COMPUTE)[0] == pytest.approx(
        floor + scale * (COMPUTE / law.middle) ** -rate, abs=1e-4
    )
    assert float(law.rate[0]) == pytest.approx(rate, rel=0.03)


def test_effective_compute_without_noise_is_exact():
    for times in (0.5, 1.0, 1.7):
        law = Law.fitted(COMPUTE, loss(COMPUTE)[None])
        found = np.exp(law.multipliers(COMPUTE, (loss(COMPUTE * times) - loss(COMPUTE))[None]))
        assert found[0] == pytest.approx(times, rel=0.01)
    below = law.multipliers(COMPUTE, np.full((1, 5), -5.0))
    assert np.isinf(below).all()


@pytest.mark.ci
@pytest.mark.parametrize("times", [1.0, 4.0])
def test_intervals_cover(times):
    """benchmarks/ladders.py has many more."""
    rng, covered, of_growth = np.random.default_rng(1), [], []
    for _ in range(60):
        found, _ = judged(rng, times)
        covered += [ends.low <= times <= ends.high for ends in found.intervals]
        of_growth.append(found.growth_interval.low <= 0 <= found.growth_interval.high)
        assert all(
            e.low <= m <= e.high for e, m in zip(found.intervals, found.multiples, strict=True)
        )
    assert 0.9 < np.mean(covered) < 0.995
    assert np.mean(of_growth) > 0.9


def test_a_gain_that_grows_is_shown():
    found, _ = judged(np.random.default_rng(2), (COMPUTE / COMPUTE[0]) ** 0.15)
    assert found.growth_interval.low > 0
    assert found.growth == pytest.approx(0.15, abs=0.06)


def test_what_has_no_growth_widens_its_interval_on_both_sides():
    losses, small = loss(COMPUTE)[:, None] + [[0.001, -0.001]], np.array([0.001, -0.001])
    below = np.array([-3.0, -0.01, -0.01, -0.01, -3.0])
    found = effective(COMPUTE, losses, below, [error(small, None)] * 5)
    assert (found.growth, found.growth_interval) == (None, Interval(-np.inf, np.inf))
    assert not np.isnan(found.growths).any()


def test_fewer_than_four_sizes_or_a_flat_loss_have_no_law():
    rng = np.random.default_rng(3)
    assert judged(rng, 1.2, sizes=3)[0] is None
    assert judged(rng, 1.2, sizes=4)[0] is not None
    assert predicted(COMPUTE[:4], loss(COMPUTE[:4])) is None
    errors = [error(np.array([0.1, -0.1]), None)] * 5
    assert effective(COMPUTE, [[1.0, 1.1]] * 5, np.zeros(5), errors) is None


def test_the_largest_size_is_predicted_by_the_others():
    assert predicted(COMPUTE, loss(COMPUTE)) == pytest.approx(loss(COMPUTE)[-1], rel=1e-3)


def test_verdicts_at_a_small_size_are_compared_with_those_at_the_largest(tmp_path):
    """Counted by hand."""
    script = run_path(str(Path(__file__).parents[1] / "benchmarks" / "decisions.py"))
    means = {"1M": [3.0, 2.5, 2.9, 3.4, 3.1], "4M": [2.0, 1.8, 2.01, 2.3, 2.02]}
    verdicts = {
        "1M": ["baseline", "better", "better", "inconclusive", "inconclusive"],
        "4M": ["baseline", "better", "inconclusive", "worse", "inconclusive"],
    }
    blocks = {
        size: {
            "arms": [
                {"name": name, "verdict": verdict, "mean": mean, "n": 3,
                 "difference": mean - means[size][0] if n else None,
                 "interval": [mean - 4, mean] if n else None}
                for n, (name, verdict, mean) in enumerate(
                    zip("abcde", verdicts[size], means[size], strict=True))
            ]
        }
        for size in means
    }  # fmt: skip
    write_json(tmp_path / "report.json", {"study": "parts", "baseline": "a", "blocks": blocks})
    every = pd.DataFrame(script["rows"](tmp_path))
    assert script["agreement"](every, "1M", "4M") == {
        "size": "1M",
        "differences shown that stay": "1 of 2",
        "that turn": "0 of 2",
        "differences with the sign of that at 4M": "3 of 4",
        "pairs of arms in the order at 4M": "9 of 10",
    }
    page = script["page"](every)
    table = [" ".join(line.split()) for line in page.splitlines() if "| parts" in line]
    assert table == [
        "| parts | b | -0.500 ▲ | -0.200 ▲ | stays |",
        "| parts | c | -0.100 ▲ | +0.010 | fades |",
        "| parts | d | +0.400 | +0.300 ▼ | appears |",
        "| parts | e | +0.100 | +0.020 | open |",
    ]
    assert script["outcome"]("worse", "better") == "turns"


TIMES = dict(zip("abcd", (1.0, 2.0, 4.0, 8.0), strict=True))


def climbs(monkeypatch, losses, power):
    """Of a study with these losses by arm, block and seed. power: of an arm's FLOPs over size."""
    rows = [
        {"arm": arm, "seed": seed, "block": block, "loss": value}
        for (arm, block, seed), value in losses.items()
    ]
    columns = ["arm", "seed", "block", "loss"]
    read = read_rows([("", row) for row in rows], columns, Path("frame"))
    study = study_of(read, Path(), baseline="x")
    of = {id(part): n for part, n in zip(study.blocks.values(), TIMES.values(), strict=True)}
    cost = lambda part, arm: 9e12 * of[id(part)] ** power(arm)  # noqa: E731
    monkeypatch.setattr(module, "_flops", cost)
    return module.ladder(study, "loss", "min").climbs


def test_growth_is_of_the_compute_of_the_arm_itself(monkeypatch):
    """An arm with the baseline's losses, whose cost grows faster."""
    runs = product("xy", TIMES, range(3))
    losses = {run: loss(9e12 * TIMES[run[1]]) + 1e-3 * (run[2] % 2) for run in runs}
    (climb,) = climbs(monkeypatch, losses, lambda arm: 1.5 if arm == "y" else 1.0)
    assert climb.growth == pytest.approx(-0.5)
    assert climb.growth_interval.low <= -0.5 <= climb.growth_interval.high


def test_an_arm_that_is_noisy_at_one_size_has_its_own_spread_at_all(monkeypatch):
    rng, used, original = np.random.default_rng(0), [], module._error
    losses = {
        (arm, block, seed): loss(9e12 * TIMES[block])
        + rng.normal() * (1e-2 if (arm, block) == ("y", "a") else 1e-4)
        for arm, block, seed in product("xvwyz", TIMES, range(3))
    }
    keep = lambda own, parts: used.append(parts) or original(own, parts)  # noqa: E731
    monkeypatch.setattr(module, "_error", keep)
    climbs(monkeypatch, losses, lambda arm: 1.0)
    assert [parts is None for parts in used] == [n // 4 == 2 for n in range(16)]
