"""Does the best learning rate of a small model transfer? Of a finished `sweep=rates`.

    python benchmarks/rates.py outputs/rates

The best rate of each size is the lowest point of a parabola through the mean losses of its best
rate and the two beside it, over the logarithm of the rate. Prints a Markdown table: the best rate,
its ratio to that of the baseline, and the loss at both.
"""

import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tables import table

from ablate.run_files import read_json


class Curve(NamedTuple):
    """Mean losses over the rates that were tried, in rising order."""

    rates: np.ndarray
    losses: np.ndarray

    @property
    def parabola(self) -> np.poly1d:
        """The loss over log2(rate) near the best rate. Raises ValueError if that is at an edge."""
        best = int(np.argmin(self.losses))
        if not 0 < best < len(self.rates) - 1:
            raise ValueError(f"the best rate, {self.rates[best]:g}, is at the edge of the grid")
        near = slice(best - 1, best + 2)
        return np.poly1d(np.polyfit(np.log2(self.rates[near]), self.losses[near], 2))

    @property
    def best(self) -> float:
        return float(2 ** self.parabola.deriv().roots[0])

    def loss(self, rate: float) -> float:
        return float(self.parabola(np.log2(rate)))


def curves(folder: Path) -> dict[str, Curve]:
    """The losses of every arm of a study that was tuned by the learning rate; baseline first."""
    found = {}
    for arm in read_json(folder / "plan.json")["arms"]:
        tried = {trial["point"]["optimizer.lr"]: trial["mean"] for trial in arm["tuning"]}
        rates = sorted(tried)
        found[arm["name"]] = Curve(np.array(rates), np.array([tried[rate] for rate in rates]))
    return found


def page(found: dict[str, Curve]) -> str:
    reference = next(iter(found.values())).best
    heads = ("size", "best rate", "ratio to the baseline's", "loss", "loss at the baseline's rate")
    rows = [
        (
            *(name, f"{curve.best:.2e}", f"{curve.best / reference:.2f}"),
            *(f"{curve.loss(rate):.4f}" for rate in (curve.best, reference)),
        )
        for name, curve in found.items()
    ]
    return table(heads, rows)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    print(page(curves(Path(sys.argv[1]))), end="")
