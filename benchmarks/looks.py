"""Studies that add seeds until their arms are decided: error rates, power and numbers of runs.

    OMP_NUM_THREADS=1 python benchmarks/looks.py [--studies 20000]

Simulates studies without any training, and writes docs/results/benchmarks/looks.csv and the tables
of docs/results/error-rates.md and docs/how-to/choose-seeds-and-steps.md. Of each shape of noise
(verdicts.py), number of arms and largest number of seeds, with a first look at three seeds:

- false: share of studies without any effect in which a difference is shown
- covered: share of studies, of arms with the effects EFFECTS, whose intervals all cover them
- power: share of the arms with such an effect that are shown, by effect; fixed_power: with the
  largest number of seeds in every arm
- runs, null_runs: mean number of runs as a share of those with the largest number of seeds, with
  these effects and without any
- excess: mean estimate of an arm with the effect 2 that is shown, as a multiple of the effect

The studies are computed at once by the formulas of ablate.study.analysis; of each cell, CHECKED
studies are judged by `compare` too and have to agree.
"""

import argparse
import csv
import runpy
from pathlib import Path

import numpy as np
from scipy import stats

from ablate.study.analysis.compare import compare
from ablate.study.analysis.looks import FUTILE, levels
from ablate.study.analysis.noise import ARM, level_of_baseline
from ablate.study.analysis.stats import LEVEL
from ablate.study.plan.request import looks

ROOT = Path(__file__).parents[1]
VERDICTS = runpy.run_path(str(Path(__file__).with_name("verdicts.py")))
SHAPES, PAGE, HOW_TO = VERDICTS["SHAPES"], VERDICTS["PAGE"], VERDICTS["HOW_TO"]
DATA = ROOT / "docs" / "results" / "benchmarks" / "looks.csv"
START, END = "<!-- benchmarks/looks.py -->\n", "<!-- end -->"
ARMS, UP_TO, FIRST = (2, 5, 10), (6, 12), 3
EFFECTS = (0.0, 0.0, 1.0, 2.0, 4.0)  # of the arms in turn, in standard deviations of the residual
CHECKED, CHUNK = 20, 2000
Results = tuple[np.ndarray, ...]


def residuals(y: np.ndarray, n: np.ndarray) -> Results:
    """Residual squares and degrees of freedom of the layout arm + seed of all arms, and of all but
    each. y: studies, arms, seeds; n: how many seeds each arm has."""
    seeds = y.shape[2]
    there = (np.arange(seeds) < n[..., None]).astype(float)
    counts = there.sum(2, keepdims=True)
    centered = there * (y - (there * y).sum(2, keepdims=True) / counts)
    shares = np.einsum("nas,nat->nast", there / counts, there)
    every = np.arange(seeds)
    equations = -shares.sum(1) + 1 / seeds  # which makes them regular
    equations[:, every, every] += there.sum(1)
    without = equations[:, None] + shares
    without[:, :, every, every] -= there
    right, squares = centered.sum(1), (centered**2).sum(2)

    def left(equations: np.ndarray, right: np.ndarray) -> np.ndarray:
        solved: np.ndarray = (right * np.linalg.solve(equations, right[..., None])[..., 0]).sum(-1)
        return solved

    total = squares.sum(1) - left(equations, right)
    rest = squares.sum(1)[:, None] - squares - left(without, right[:, None] - centered)
    df = n.sum(1) - y.shape[1] - seeds + 1
    return total[:, None], rest, df[:, None], df[:, None] - n + 1


def tests(y: np.ndarray, n: np.ndarray) -> Results:
    """Difference, standard error and degrees of freedom of arms with all seeds, as of `noise`."""
    total, rest, df, rest_df = residuals(y, n)
    own_squares, own_df, seeds = np.maximum(total - rest, 0.0), df - rest_df, y.shape[2]
    p = stats.f.sf(own_squares / own_df / (rest / rest_df), own_df, rest_df)
    alike, first = rest[:, :1] / rest_df[:, :1], own_squares[:, :1] / own_df[:, :1]
    apart_df = (alike + first) ** 2 / (alike**2 / rest_df[:, :1] + first**2 / own_df[:, :1])
    differences = y[:, 1:] - y[:, :1]
    own = differences.var(2, ddof=1)
    noisy, alone = p[:, :1] <= level_of_baseline(seeds), p[:, 1:] <= ARM
    variance = np.maximum(np.where(noisy, alike + first, 2 * total / df), own)
    error = np.sqrt(np.where(alone, own, variance) / seeds)
    return differences.mean(2), error, np.where(alone, seeds - 1, np.where(noisy, apart_df, df))


def judge(y: np.ndarray, at: tuple[int, ...]) -> Results:
    """Of each study and arm: whether it is shown, its difference, the half width of its interval,
    and the number of its seeds; then the number of runs of the study."""
    studies, count = len(y), y.shape[1] - 1
    n = np.full((studies, count + 1), at[0])
    shown, going = np.zeros((2, studies, count), bool)
    going[:] = True
    difference, half = np.zeros((2, studies, count))
    steps = np.array([levels(LEVEL / family, at) for family in range(1, count + 1)])
    for number, seeds in enumerate(at):
        rows = np.flatnonzero(going.any(1))
        if not len(rows):
            break
        tested, before = going[rows], count - shown[rows].sum(1)
        n[rows] = np.where(np.c_[np.ones(len(rows), bool), tested], seeds, n[rows])
        mean, error, df = tests(y[rows, :, :seeds], n[rows])
        p = np.where(tested, 2 * stats.t.sf(np.abs(mean) / error, df), 2.0)
        order = np.argsort(p, axis=1)
        level = steps[np.maximum(before[:, None] - np.arange(count), 1) - 1, number]
        passed = np.cumprod(np.take_along_axis(p, order, 1) <= level, axis=1).astype(bool)
        missed = level[np.arange(len(rows)), np.minimum(passed.sum(1), count - 1)]
        new, own = np.zeros_like(tested), np.zeros_like(p)
        np.put_along_axis(new, order, passed, 1)
        np.put_along_axis(own, order, np.where(passed, level, missed[:, None]), 1)
        difference[rows] = np.where(tested, mean, difference[rows])
        half[rows] = np.where(tested, stats.t.isf(own / 2, df) * error, half[rows])
        shown[rows] |= new
        share, left = seeds / at[-1], np.maximum(count - shown[rows].sum(1), 1)
        if seeds < at[-1]:
            needed = stats.norm.isf(steps[left - 1, -1] / 2)[:, None]
            z = stats.norm.isf(np.clip(p, 1e-300, 1) / 2)
            chance = stats.norm.cdf((z - needed * np.sqrt(share)) / np.sqrt(1 - share))
            going[rows] = tested & ~new & (chance >= FUTILE)
    return shown, difference, half, n[:, 1:], n.sum(1)


def agree(y: np.ndarray, at: tuple[int, ...], found: Results) -> None:
    """Judge a study by the program, with the seeds that it got."""
    shown, difference, half, n, _ = found
    seeds = {"0": n.max()} | {str(arm): count for arm, count in enumerate(n, 1)}
    values = {arm: {s: float(y[int(arm), s]) for s in range(k)} for arm, k in seeds.items()}
    for arm in compare(values, baseline="0", mode="min", looks=at).arms:
        own = int(arm.arm) - 1
        assert arm.interval
        assert (arm.n, arm.tests.differs) == (n[own], shown[own])
        assert np.allclose([arm.difference, arm.interval.half], [difference[own], half[own]])


def simulate(shape: str, arms: int, last: int, studies: int) -> dict[str, object]:
    at, rng = looks(FIRST, last), np.random.default_rng([arms, last, [*SHAPES].index(shape)])
    effects = np.resize(EFFECTS, arms) if arms >= len(EFFECTS) else np.array(EFFECTS[-arms:])
    found: dict[str, list[np.ndarray]] = {}
    for _ in range(0, studies, CHUNK):
        y = SHAPES[shape](rng, (min(CHUNK, studies), arms + 1, last))
        moved = y + np.r_[0.0, effects][:, None]
        null, some = judge(y, at), judge(moved, at)
        for study in range(CHECKED // (studies // CHUNK or 1) + 1):
            agree(moved[study], at, tuple(part[study] for part in some))
        shown, difference, half, _, runs = some
        two = shown & (effects == 2)
        for name, part in {
            "false": null[0].any(1),
            "covered": (np.abs(difference - effects) <= half).all(1),
            "runs": runs / ((arms + 1) * last),
            "null_runs": null[4] / ((arms + 1) * last),
            "shown": shown,
            "fixed": judge(moved, (last,))[0],
            "excess": difference[two] / 2,
        }.items():
            found.setdefault(name, []).append(part)
    of = {name: np.concatenate(parts) for name, parts in found.items()}
    row: dict[str, object] = {"noise": shape, "arms": arms, "up_to": last, "studies": studies}
    row |= {k: round(float(of[k].mean()), 4) for k in ("false", "covered", "runs", "null_runs")}
    for effect in sorted({*effects} - {0.0}):
        for name, shown in (("power", of["shown"]), ("fixed_power", of["fixed"])):
            row[f"{name}_{effect:g}"] = round(float(shown[:, effects == effect].mean()), 4)
    return row | {"excess": round(float(of["excess"].mean()), 3)}


FIELDS = (
    "noise", "arms", "up_to", "studies", "false", "covered", "runs", "null_runs", "power_1",
    "power_2", "power_4", "fixed_power_1", "fixed_power_2", "fixed_power_4", "excess",
)  # fmt: skip


def tables(rows: list[dict[str, object]]) -> tuple[str, str]:
    """False verdicts by shape; runs and power with normal noise: as tables of Markdown."""
    cells = [(arms, last) for last in UP_TO for arms in ARMS]
    by_cell = {(row["noise"], row["arms"], row["up_to"]): row for row in rows}
    heads = ["noise", *(f"{arms} arms, up to {last} seeds" for arms, last in cells)]
    lines = [heads, ["---"] * len(heads)]
    for shape in SHAPES:
        lines.append([shape, *(f"{by_cell[shape, *cell]['false']:.1%}" for cell in cells)])
    heads = [
        "seeds", "runs, some effects", "runs, no effect",
        "power at 1", "power at 2", "fixed: power at 1", "fixed: power at 2",
    ]  # fmt: skip
    runs = [heads, ["---"] * len(heads)]
    for arms, last in cells:
        row = by_cell["normal", arms, last]
        if "power_1" in row:
            names = ("runs", "null_runs", "power_1", "power_2", "fixed_power_1", "fixed_power_2")
            runs.append([f"{arms} arms, 3 to {last}", *(f"{row[name]:.0%}" for name in names)])
    first, second = ("".join(f"| {' | '.join(line)} |\n" for line in t) for t in (lines, runs))
    return first, second


def put(page: Path, table: str) -> None:
    before, part = page.read_text().split(START)
    page.write_text(before + START + table + part[part.index(END) :])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--studies", type=int, default=20_000)
    studies = parser.parse_args().studies
    rows = []
    for last in UP_TO:
        for arms in ARMS:
            for shape in SHAPES:
                rows.append(simulate(shape, arms, last, studies))
                print(rows[-1], flush=True)
    with DATA.open("w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS)
        writer.writeheader()
        writer.writerows(rows)
    for page, table in zip((PAGE, HOW_TO), tables(rows), strict=True):
        put(page, table)


if __name__ == "__main__":
    main()
