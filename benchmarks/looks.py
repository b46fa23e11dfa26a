"""Studies that add seeds until their arms are decided: error rates, power and numbers of runs.

    OMP_NUM_THREADS=1 python benchmarks/looks.py [--studies 20000] [--claims]

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

and of studies with claims (looks_claims.csv), whose arms get seeds for claims only:

- false: share of studies whose claims are all true by nothing (the effect is the smallest that
  counts, or the margin) in which one is confirmed or refuted
- power: share of claims that are true by EXCESS which are confirmed; fixed_power, runs and
  null_runs as above; refuted: share of studies in which such a claim is refuted

The studies are computed at once by the formulas of ablate.study.analysis; of each cell, CHECKED
studies are judged by `compare` or `settle` too and have to agree.
"""

import argparse

import numpy as np
from scipy import stats
from tables import put, table, write
from verdicts import HOW_TO, PAGE, ROOT, SHAPES, of_arms, tests

from ablate.study.analysis.claims import settle
from ablate.study.analysis.compare import compare
from ablate.study.analysis.looks import FUTILE, levels
from ablate.study.analysis.noise import Noise
from ablate.study.analysis.stats import LEVEL
from ablate.study.plan.claims import Claim, Term
from ablate.study.plan.request import looks

DATA = ROOT / "docs" / "results" / "benchmarks" / "looks.csv"
START = "<!-- benchmarks/looks.py -->\n"
CLAIMS = START.replace(" -->", ": claims -->")
ARMS, UP_TO, FIRST = (2, 5, 10), (6, 12), 3
EFFECTS = (0.0, 0.0, 1.0, 2.0, 4.0)  # of the arms in turn, in standard deviations of the residual
EXCESS = 2.0  # of true claims over the smallest effect that counts, or under the margin
CHECKED, CHUNK = 20, 2000
Results = tuple[np.ndarray, ...]
Claimed = tuple[np.ndarray, np.ndarray]  # smallest effects or margins; which are margins


def families(
    mean: np.ndarray, error: np.ndarray, df: np.ndarray, claimed: Claimed | None
) -> list[tuple[np.ndarray, np.ndarray | int]]:
    """p, and the sides of the test: of differences; of claims, of confirmations and refutations."""
    if claimed is None:
        return [(2 * stats.t.sf(np.abs(mean) / error, df), 2)]
    bounds, equal = claimed
    beyond = np.where(equal, bounds - np.abs(mean), mean - bounds)
    p = 2 * stats.t.sf(np.abs(beyond) / error, df)
    confirm = np.where(equal, stats.t.sf(beyond / error, df), np.where(beyond > 0, p, 1.0))
    return [(confirm, np.where(equal, 1, 2)), (np.where(beyond > 0, 1.0, p), 2)]


def judge(
    y: np.ndarray, at: tuple[int, ...], weights: np.ndarray, claimed: Claimed | None = None
) -> Results:
    """Of each study and contrast: whether it is shown, by family; its mean, the half width of its
    interval (without claims), and the number of its seeds; then that of each arm."""
    studies, count = len(y), len(weights)
    n = np.full(y.shape[:2], at[0])
    shown = np.zeros((1 if claimed is None else 2, studies, count), bool)
    going, last = np.ones((studies, count), bool), np.full((studies, count), at[0])
    difference, half = np.zeros((2, studies, count))
    steps = np.array([levels(LEVEL / family, at) for family in range(1, count + 1)])
    for number, seeds in enumerate(at):
        rows = np.flatnonzero(going.any(1))
        if not len(rows):
            break
        tested, share = going[rows], seeds / at[-1]
        needed = (tested[:, :, None] & (weights != 0)).any(1) | (np.arange(y.shape[1]) == 0)
        n[rows] = np.where(needed, seeds, n[rows])
        last[rows] = np.where(tested, seeds, last[rows])
        mean, error, df, *_ = tests(y[rows, :, :seeds], n[rows], weights)
        difference[rows] = np.where(tested, mean, difference[rows])
        promising = np.zeros_like(tested)
        for family, (p_, sides) in enumerate(families(mean, error, df, claimed)):
            p, before = np.where(tested, p_, 2.0), count - shown[family, rows].sum(1)
            order = np.argsort(p, axis=1, kind="stable")
            level = steps[np.maximum(before[:, None] - np.arange(count), 1) - 1, number]
            passed = np.cumprod(np.take_along_axis(p, order, 1) <= level, axis=1).astype(bool)
            missed = level[np.arange(len(rows)), np.minimum(passed.sum(1), count - 1)]
            new, own = np.zeros_like(tested), np.zeros_like(p)
            np.put_along_axis(new, order, passed, 1)
            np.put_along_axis(own, order, np.where(passed, level, missed[:, None]), 1)
            half[rows] = np.where(tested, stats.t.isf(own / 2, df) * error, half[rows])
            shown[family, rows] |= new
            left = np.maximum(count - shown[family, rows].sum(1), 1)
            if seeds < at[-1]:
                bound = stats.norm.isf(steps[left - 1, -1][:, None] / sides)
                z = stats.norm.isf(np.clip(p, 1e-300, 1) / sides)
                chance = stats.norm.cdf((z - bound * np.sqrt(share)) / np.sqrt(1 - share))
                promising |= chance >= FUTILE
        going[rows] = tested & promising & ~shown[:, rows].any(0)
    return shown, difference, half, last, n


def runs_of(y: np.ndarray, n: np.ndarray) -> dict[str, dict[int, float]]:
    return {str(a): {s: float(y[a, s]) for s in range(count)} for a, count in enumerate(n)}


def agree(y: np.ndarray, at: tuple[int, ...], found: Results, study: int) -> None:
    """Judge a study by the program, with the seeds that it got."""
    shown, difference, half, last, n = (part[..., study, :] for part in found)
    for arm in compare(runs_of(y, n), baseline="0", mode="min", looks=at).arms:
        own = int(arm.arm) - 1
        assert arm.interval
        assert (arm.n, arm.tests.differs) == (last[own], shown[0, own])
        assert np.allclose([arm.difference, arm.interval.half], [difference[own], half[own]])


def simulate(shape: str, arms: int, last: int, studies: int) -> dict[str, object]:
    at, rng = looks(FIRST, last), np.random.default_rng([arms, last, [*SHAPES].index(shape)])
    effects = np.resize(EFFECTS, arms) if arms >= len(EFFECTS) else np.array(EFFECTS[-arms:])
    found: dict[str, list[np.ndarray]] = {}
    for _ in range(0, studies, CHUNK):
        y = SHAPES[shape](rng, (min(CHUNK, studies), arms + 1, last))
        moved = y + np.r_[0.0, effects][:, None]
        null, some = (judge(each, at, of_arms(arms)) for each in (y, moved))
        for study in range(CHECKED // (studies // CHUNK or 1) + 1):
            agree(moved[study], at, some, study)
        (shown,), difference, half, _, n = some
        two = shown & (effects == 2)
        for name, part in {
            "false": null[0][0].any(1),
            "covered": (np.abs(difference - effects) <= half).all(1),
            "runs": n.sum(1) / ((arms + 1) * last),
            "null_runs": null[4].sum(1) / ((arms + 1) * last),
            "shown": shown,
            "fixed": judge(moved, (last,), of_arms(arms))[0][0],
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


def claims_of(arms: int) -> tuple[np.ndarray, np.ndarray]:
    """The contrasts of claims: of arms with the baseline and with each other, of an arm with a
    number, from five arms on an interaction; and which are equivalences: the last."""
    arm = np.eye(arms + 1)
    rows = [arm[1] - arm[0], arm[2] - arm[1], arm[1]]
    if arms > 4:
        rows += [arm[1] - arm[0] - arm[2] + arm[3], *(arm[k] - arm[0] for k in range(4, arms))]
    weights = np.array([*rows, arm[arms] - arm[0]])
    return weights, np.arange(len(weights)) == len(weights) - 1


def agree_on_claims(
    y: np.ndarray, at: tuple[int, ...], weights: np.ndarray, claimed: Claimed, found: Results,
    study: int,
) -> None:  # fmt: skip
    """Judge a study by the program, with the seeds that it got."""
    shown, difference, _, last, n = (part[..., study, :] for part in found)
    values = runs_of(y, n)
    claims = [
        Claim(
            "", "", "equivalent" if equal else "higher",
            tuple(Term(str(a) if a else None, None, float(row[a])) for a in np.flatnonzero(row)),
            min_effect=0.0 if equal else float(bound), margin=float(bound) if equal else None,
        )
        for row, bound, equal in zip(weights, *claimed, strict=True)
    ]  # fmt: skip

    def seeds(claim: Claim) -> range:
        return range(min(n[int(term.arm or 0)] for term in claim.terms))

    for own, each in enumerate(
        settle(
            claims, lambda term: values[term.arm or "0"], lambda *of: Noise.of(values, "0"),
            seeds=seeds, mode="min", looks=at,
        )
    ):  # fmt: skip
        verdict = "confirmed" if shown[0, own] else "refuted" if shown[1, own] else "undecided"
        assert (each.verdict, each.n) == (verdict, last[own])
        assert each.effect is not None
        assert np.isclose(each.effect, difference[own])


def simulate_claims(shape: str, arms: int, last: int, studies: int) -> dict[str, object]:
    """Claims that are true by nothing, of which any verdict is wrong, and by EXCESS."""
    at, rng = looks(FIRST, last), np.random.default_rng([arms, last, [*SHAPES].index(shape)])
    weights, equal = claims_of(arms)
    effects = np.r_[np.zeros(arms), 1.0]
    bounds = weights @ effects  # the margin of the equivalence is the effect of its arm
    excess = bounds + np.where(equal, EXCESS, -EXCESS)
    found: dict[str, list[np.ndarray]] = {}
    for _ in range(0, studies, CHUNK):
        y = SHAPES[shape](rng, (min(CHUNK, studies), arms + 1, last)) + effects[:, None]
        null, some = (judge(y, at, weights, (bound, equal)) for bound in (bounds, excess))
        for study in range(CHECKED // (studies // CHUNK or 1) + 1):
            agree_on_claims(y[study], at, weights, (bounds, equal), null, study)
            agree_on_claims(y[study], at, weights, (excess, equal), some, study)
        for name, part in {
            "false": null[0].any((0, 2)),
            "null_runs": null[4].sum(1) / ((arms + 1) * last),
            "runs": some[4].sum(1) / ((arms + 1) * last),
            "power": some[0][0],
            "fixed_power": judge(y, (last,), weights, (excess, equal))[0][0],
            "refuted": some[0][1].any(1),
        }.items():
            found.setdefault(name, []).append(part)
    row: dict[str, object] = {"noise": shape, "arms": arms, "claims": len(weights)}
    row |= {"up_to": last, "studies": studies}
    return row | {k: round(float(np.concatenate(v).mean()), 4) for k, v in found.items()}


FIELDS = (
    "noise", "arms", "up_to", "studies", "false", "covered", "runs", "null_runs", "power_1",
    "power_2", "power_4", "fixed_power_1", "fixed_power_2", "fixed_power_4", "excess",
)  # fmt: skip


CELLS = [(arms, last) for last in UP_TO for arms in ARMS]


def false_verdicts(rows: list[dict[str, object]]) -> str:
    """Shares of studies with a false verdict, by shape, as a table of Markdown."""
    by_cell = {(row["noise"], row["arms"], row["up_to"]): row for row in rows}
    heads = ["noise", *(f"{arms} arms, up to {last} seeds" for arms, last in CELLS)]
    shares = {shape: [by_cell[shape, *cell]["false"] for cell in CELLS] for shape in SHAPES}
    return table(heads, [(shape, *(f"{x:.1%}" for x in row)) for shape, row in shares.items()])


def runs_and_power(rows: list[dict[str, object]]) -> str:
    """Runs and power with normal noise, as a table of Markdown."""
    by_cell = {(row["arms"], row["up_to"]): row for row in rows if row["noise"] == "normal"}
    heads = [
        "seeds", "runs, some effects", "runs, no effect",
        "power at 1", "power at 2", "fixed: power at 1", "fixed: power at 2",
    ]  # fmt: skip
    runs = []
    for arms, last in CELLS:
        row = by_cell[arms, last]
        if "power_1" in row:
            names = ("runs", "null_runs", "power_1", "power_2", "fixed_power_1", "fixed_power_2")
            runs.append([f"{arms} arms, 3 to {last}", *(f"{row[name]:.0%}" for name in names)])
    return table(heads, runs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--studies", type=int, default=20_000)
    parser.add_argument("--claims", action="store_true", help="only claims")
    args = parser.parse_args()
    every = [(shape, arms, last, args.studies) for arms, last in CELLS for shape in SHAPES]
    rows = [print_row(simulate_claims(*each)) for each in every]
    write(DATA.with_name("looks_claims.csv"), rows, [*rows[0]])
    put(PAGE, CLAIMS, false_verdicts(rows))
    if args.claims:
        return
    rows = [print_row(simulate(*each)) for each in every]
    write(DATA, rows, FIELDS)
    put(PAGE, START, false_verdicts(rows))
    put(HOW_TO, START, runs_and_power(rows))


def print_row(row: dict[str, object]) -> dict[str, object]:
    print(row, flush=True)
    return row


if __name__ == "__main__":
    main()
