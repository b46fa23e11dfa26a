"""How often verdicts are wrong, and what they can show: simulated studies without any training.

    OMP_NUM_THREADS=1 python benchmarks/verdicts.py [--studies 20000]

Writes docs/results/benchmarks/verdicts.csv, the table of docs/results/error-rates.md and those of
docs/how-to/choose-seeds-and-steps.md (only these with --studies 0). Of each shape of noise, number
of arms and number of seeds, of two seeds with a known noise of KNOWN_DF degrees of freedom:

- false: share of studies without any effect in which a difference is shown
- covered: share of arms whose difference lies within a 95 % interval that is not adjusted
- all_covered: share of studies without any effect whose adjusted intervals all cover it; where the
  known noise is not used there are two seeds and no verdict, and the intervals count as covering
- power: share of studies in which an effect of three standard deviations of one run is shown, with
  a residual of 0.71 of it (OF_POWER; by an arm of usual noise)

The studies are computed at once by the formulas of ablate.study.analysis.noise; of each cell,
CHECKED studies are judged by `compare` too and have to agree.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np
from scipy import stats
from tables import put, table, write

from ablate.study.analysis.compare import compare
from ablate.study.analysis.noise import ARM, Part, far, level_of_baseline, two_sided
from ablate.study.analysis.power import seeds_for, smallest_effect
from ablate.study.analysis.stats import LEVEL
from ablate.study.numbers import counted

ROOT = Path(__file__).parents[1]
DATA = ROOT / "docs" / "results" / "benchmarks" / "verdicts.csv"
PAGE = ROOT / "docs" / "results" / "error-rates.md"
START = "<!-- benchmarks/verdicts.py -->\n"
FIELDS = ("noise", "arms", "seeds", "studies", "false", "covered", "all_covered", "power")
HOW_TO = ROOT / "docs" / "how-to" / "choose-seeds-and-steps.md"
ARMS, SEEDS = (2, 5, 10), (2, 3, 5)
KNOWN_DF = 40  # of the known noise of studies with two seeds, such as of 11 arms with 5 seeds
EFFECT = 3 / 0.71  # in standard deviations of the residual
CHECKED = 50
Rng = np.random.Generator


def times(index: int | slice, factor: float) -> Callable[[Rng, tuple[int, int, int]], np.ndarray]:
    """Normal noise, of one arm (0: the baseline) or of several so many times as large."""

    def noise(rng: Rng, size: tuple[int, int, int]) -> np.ndarray:
        y = rng.standard_normal(size)
        y[:, index] *= factor
        return y

    return noise


def spread_out(rng: Rng, size: tuple[int, int, int]) -> np.ndarray:
    """Normal noise of arms from a half to twice, in any order."""
    scale = np.tile(2.0 ** np.linspace(-1, 1, size[1]), (size[0], 1))
    return rng.standard_normal(size) * rng.permuted(scale, axis=1)[..., None]


def interaction(rng: Rng, size: tuple[int, int, int]) -> np.ndarray:
    """Arms to which a seed matters more or less than to others."""
    by_seed, by_arm = rng.standard_normal((size[0], 1, size[2])), rng.standard_normal(size[:2])
    return (rng.standard_normal(size) + by_seed * by_arm[..., None]) / np.sqrt(2)


SHAPES: dict[str, Callable[[Rng, tuple[int, int, int]], np.ndarray]] = {
    "normal": lambda rng, size: rng.standard_normal(size),
    "heavy tails (t, 3 degrees of freedom)": lambda rng, size: rng.standard_t(3, size),
    "baseline 2 times as noisy": times(0, 2),
    "baseline 4 times as noisy": times(0, 4),
    "an arm 2 times as noisy": times(1, 2),
    "an arm 4 times as noisy": times(1, 4),
    "an arm 30 times as noisy": times(1, 30),
    "arms from half to twice as noisy": spread_out,
    "seeds matter more to some arms": interaction,
    "two arms 6 times as noisy": times(slice(1, 3), 6),
}

OF_POWER = ("normal", "an arm 30 times as noisy")

Results = tuple[np.ndarray, ...]


def residuals(y: np.ndarray, n: np.ndarray, near: np.ndarray) -> Results:
    """Residual squares and degrees of freedom of the layout arm + seed of the arms that are near,
    and of all of these but each. y: studies, arms, seeds; n: how many seeds each arm has."""
    seeds = y.shape[2]
    there = ((np.arange(seeds) < n[..., None]) & near[..., None]).astype(float)
    counts = np.maximum(there.sum(2, keepdims=True), 1)
    centered = there * (y - (there * y).sum(2, keepdims=True) / counts)
    shares = np.einsum("nas,nat->nast", there / counts, there)
    of_seeds, every = there.sum(1), np.arange(seeds)
    left_of_seeds = of_seeds[:, None] - there
    equations = -shares.sum(1) + 1 / seeds  # which makes them regular
    without = equations[:, None] + shares
    # a seed without any run has the term zero
    equations[:, every, every] += of_seeds + (of_seeds == 0)
    without[:, :, every, every] += left_of_seeds + (left_of_seeds == 0)
    right, squares = centered.sum(1), (centered**2).sum(2)

    def explained(equations: np.ndarray, right: np.ndarray) -> np.ndarray:
        solved: np.ndarray = (right * np.linalg.solve(equations, right[..., None])[..., 0]).sum(-1)
        return solved

    total = squares.sum(1) - explained(equations, right)
    rest = squares.sum(1)[:, None] - squares - explained(without, right[:, None] - centered)
    runs, arms = (near * n).sum(1, keepdims=True), near.sum(1, keepdims=True)
    df = runs - arms - (of_seeds > 0).sum(1, keepdims=True) + 1
    rest_df = runs - near * n - arms + near - (left_of_seeds > 0).sum(2) + 1
    return total[:, None], rest, df, rest_df


def tests(
    y: np.ndarray,
    n: np.ndarray,
    weights: np.ndarray,
    known: np.ndarray | float = 0,  # noqa: PT028  (no test of pytest)
    known_df: int = 0,  # noqa: PT028
) -> Results:
    """Mean, standard error and degrees of freedom of contrasts between arms with all seeds, as of
    `noise`; then the variance of a run within its seed and its degrees of freedom. weights:
    contrasts, arms; known: the variance known of each study."""
    seeds, studies = y.shape[2], np.arange(len(y))
    near = np.ones(y.shape[:2], bool)
    while True:
        total, rest, df, rest_df = residuals(y, n, near)
        own_df, others_df = np.maximum(df - rest_df, 1), np.maximum(rest_df + known_df, 1)
        others = (rest + known * known_df) / others_df
        others = np.where(rest_df + known_df > 0, others, np.inf)  # none to compare with
        ratio = np.maximum(total - rest, 0) / own_df / others
        p = np.where(near, stats.f.sf(ratio, own_df, others_df), 0.0)
        noisier = near & (ratio >= far(own_df, others_df))
        if not noisier.any():
            break
        some, noisiest = noisier.any(1), np.where(noisier, p, 2.0).argmin(1)
        near[studies[some], noisiest[some]] = False
    near[:, 0] = True
    total, rest, df, rest_df = residuals(y, n, near)
    own_df = df - rest_df[:, :1]
    of_baseline = np.maximum(total - rest[:, :1], 0) / own_df
    noisy = p[:, :1] <= level_of_baseline(seeds)
    pooled_df = np.where(noisy, rest_df[:, :1], df) + known_df
    pooled = (np.where(noisy, rest[:, :1], total) + known * known_df) / pooled_df
    first = np.where(noisy, of_baseline, pooled)
    parts, of_first = (weights[:, 1:] ** 2).sum(1) * pooled, weights[:, 0] ** 2 * first
    apart_df = (parts + of_first) ** 2 / (parts**2 / pooled_df + of_first**2 / own_df)
    alone = (p[:, 1:] <= ARM) @ (weights[:, 1:] != 0).T | (weights.sum(1) != 0)
    values = np.einsum("ca,nas->ncs", weights, y)
    own = values.var(2, ddof=1)
    error = np.sqrt(np.where(alone, own, np.maximum(parts + of_first, own)) / seeds)
    found_df = np.where(alone, seeds - 1, np.where(noisy, apart_df, pooled_df))
    return values.mean(2), error, found_df, pooled, pooled_df


def of_arms(count: int) -> np.ndarray:
    """The differences of arms from the baseline."""
    return np.c_[-np.ones(count), np.eye(count)]


def errors(y: np.ndarray, known: np.ndarray) -> Results:
    """Difference, standard error and degrees of freedom. y: studies, arms, seeds, the baseline
    first; known: the variance known of each study with two seeds. The error of a study with two
    seeds that does not use the known noise is infinite."""
    n, weights = np.full(y.shape[:2], y.shape[2]), of_arms(y.shape[1] - 1)
    *found, variance, df = tests(y, n, weights)
    if y.shape[2] > 2:
        return tuple(found)
    agrees = two_sided(variance / known, df, KNOWN_DF) > LEVEL
    difference, error, df, *_ = tests(y, n, weights, known, KNOWN_DF)
    return difference, np.where(agrees, error, np.inf), df


def simulate(shape: str, arms: int, seeds: int, studies: int) -> dict[str, object]:
    rng = np.random.default_rng([arms, seeds, [*SHAPES].index(shape)])
    size = (studies, arms + 1, seeds)
    y = SHAPES[shape](rng, size)
    known = rng.chisquare(KNOWN_DF, (studies, 1)) / KNOWN_DF
    difference, error, df = errors(y, known)
    p = 2 * stats.t.sf(np.abs(difference) / error, df)
    shown = p.min(1) * arms <= LEVEL  # the first step of Holm's procedure
    for n in range(CHECKED):
        values = {str(arm): dict(enumerate(map(float, own))) for arm, own in enumerate(y[n])}
        part = Part(float(known[n, 0]), KNOWN_DF) if seeds == 2 else None
        found = compare(values, baseline="0", mode="min", known=part).arms
        assert np.allclose([each.tests.p for each in found], p[n])
        assert any(each.tests.differs for each in found) == shown[n]
    covered = np.abs(difference) <= stats.t.isf(LEVEL / 2, df) * error
    power: object = ""
    if shape in OF_POWER:
        y[:, -1] += EFFECT
        difference, error, df = errors(y, known)
        moved = 2 * stats.t.sf(np.abs(difference) / error, df)
        # Of one effect: shown if its p is small enough at its own step.
        step = arms - (moved < moved[:, -1:]).sum(1)
        power = round(float((moved[:, -1] * step <= LEVEL).mean()), 4)
    rate = float(shown.mean())
    values_of = (
        shape, arms, seeds, studies, round(rate, 4), round(float(covered.mean()), 4),
        round(1 - rate, 4), power,
    )  # fmt: skip
    return dict(zip(FIELDS, values_of, strict=True))


def false_verdicts(rows: list[dict[str, object]]) -> str:
    """A table: a row for each shape."""
    cells = [(arms, seeds) for seeds in SEEDS for arms in ARMS]
    heads = ["noise", *(f"{arms} arms, {seeds} seeds" for arms, seeds in cells)]
    lines = []
    by_cell = {(row["noise"], row["arms"], row["seeds"]): row for row in rows}
    for shape in SHAPES:
        lines.append([shape, *(f"{float(by_cell[shape, *c]['false']):.1%}" for c in cells)])  # type: ignore[arg-type]
    for shape in OF_POWER:
        powers = (f"{float(by_cell[shape, *c]['power']):.0%}" for c in cells)  # type: ignore[arg-type]
        lines.append([f"**power**: {shape}", *powers])
    return table(heads, lines)


def seeds_tables() -> tuple[str, str]:
    """The seeds that show an effect, and the smallest effect shown by so many seeds, of noise of
    one."""
    arms = (1, 3, 5, 10)
    heads = [counted(count, "arm") for count in arms]
    needed = [
        [f"{effect:g}", *(seeds_for(effect, count) for count in arms)]
        for effect in (1, 1.5, 2, 3, 5)
    ]
    smallest = []
    for seeds, known_df in ((2, KNOWN_DF), (3, 0), (5, 0), (8, 0), (12, 0)):
        effects = (smallest_effect(count, seeds, known_df) for count in arms)
        name = f"{seeds}, known noise" if known_df else str(seeds)
        smallest.append([name, *(f"{effect:.1f}" for effect in effects)])
    return table(["effect", *heads], needed), table(["seeds", *heads], smallest)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--studies", type=int, default=20_000)
    studies = parser.parse_args().studies
    put(HOW_TO, START, *seeds_tables())
    if not studies:
        return
    rows = []
    for seeds in SEEDS:
        for arms in ARMS:
            for shape in SHAPES:
                rows.append(simulate(shape, arms, seeds, studies))
                print(rows[-1], flush=True)
    write(DATA, rows, FIELDS)
    put(PAGE, START, false_verdicts(rows))


if __name__ == "__main__":
    main()
