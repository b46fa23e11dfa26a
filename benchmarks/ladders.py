"""How often the intervals of effective compute cover, and how well a ladder predicts its largest
size: simulated ladders without any training.

    OMP_NUM_THREADS=1 python benchmarks/ladders.py [--ladders 2000]

Writes docs/results/benchmarks/ladders.csv. A loss falls as 1.2 + 0.8 (C / C0)^-0.25 over a factor
of 27 (four sizes) or 81 (five). Four arms, three seeds; the spread between seeds and the residual
of a run are assumed to be 0.006 nats each. In other shapes the residual of the arm is four times as
large, or the loss falls as (C / C0)^-0.1 from the middle of the ladder on. Columns:

- covered: share of sizes whose 95 % interval contains the arm's true multiple of compute
- growth_covered: the same of the growth of the multiple with size
- predicted: share of ladders whose largest size is predicted within 1 % of its loss
"""

import argparse
from pathlib import Path

import numpy as np
from tables import write

from ablate.study.analysis.noise import Noise, error
from ablate.study.analysis.scaling_law import effective, predicted

DATA = Path(__file__).parents[1] / "docs" / "results" / "benchmarks" / "ladders.csv"
FIELDS = (
    "shape", "sizes", "multiple", "growth", "ladders", "covered", "growth_covered", "predicted",
)  # fmt: skip
SD, SEEDS, ARMS = 0.006, 3, 4
LAW, NOISY, BENT = "power law", "the arm 4 times as noisy", "a bend in the curve"
CASES = (
    (LAW, 1.0, 0.0), (LAW, 1.3, 0.0), (LAW, 1.3, 0.05), (LAW, 2.0, -0.1),
    (NOISY, 1.3, 0.0), (BENT, 1.3, 0.0),
)  # fmt: skip


def loss(compute: np.ndarray, bend: float) -> np.ndarray:
    """bend: the compute from which it falls more slowly."""
    return 1.2 + 0.8 * np.minimum(compute, bend) ** -0.25 * np.maximum(compute / bend, 1) ** -0.1


def ladder(
    rng: np.random.Generator, shape: str, sizes: int, multiple: float, growth: float
) -> list[float]:
    compute = np.geomspace(1, 27 if sizes == 4 else 81, sizes)
    middle = np.exp(np.log(compute).mean())
    bend = middle if shape == BENT else np.inf
    true = multiple * (compute / middle) ** growth
    means = np.stack([loss(compute, bend), *[loss(compute * true, bend)] * (ARMS - 1)])
    shared, own = rng.normal(size=(1, sizes, SEEDS)), rng.normal(size=(ARMS, sizes, SEEDS))
    own[1] *= 4 if shape == NOISY else 1
    y = means[..., None] + SD * (shared + own)
    parts = [
        Noise.of({str(arm): dict(enumerate(y[arm, n])) for arm in range(ARMS)}, "0").parts(
            {"1": 1.0, "0": -1.0}
        )
        for n in range(sizes)
    ]
    if None in parts:
        parts = [None] * sizes
    differences = y[1] - y[0]
    errors = [
        error(own if part is None else np.full(SEEDS, own.mean()), part)
        for own, part in zip(differences, parts, strict=True)
    ]
    found = effective(compute.tolist(), y[0].tolist(), differences.mean(1), errors)
    assert found is not None
    law, ends = predicted(compute.tolist(), y[0].mean(1).tolist()), found.growth_interval
    return [
        np.mean([e.low <= t <= e.high for e, t in zip(found.intervals, true, strict=True)]),
        ends.low <= growth <= ends.high,
        np.nan if law is None else abs(law / y[0, -1].mean() - 1) < 0.01,
    ]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ladders", type=int, default=2000)
    count, rows = parser.parse_args().ladders, []
    for sizes in (4, 5):
        for number, (shape, multiple, growth) in enumerate(CASES):
            rng = np.random.default_rng([sizes, number])
            ladders = [ladder(rng, shape, sizes, multiple, growth) for _ in range(count)]
            texts = (
                "" if np.isnan(share) else f"{share:.3f}" for share in np.mean(ladders, axis=0)
            )
            row = (shape, sizes, multiple, growth, count, *texts)
            rows.append(dict(zip(FIELDS, row, strict=True)))
            print(rows[-1], flush=True)
    write(DATA, rows, FIELDS)


if __name__ == "__main__":
    main()
