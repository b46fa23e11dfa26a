"""Scaling laws of losses over training compute, and effective compute with intervals.

L(C) = E + B C^-a: a loss falls with compute C towards a floor E (Hoffmann et al. 2022, "Training
compute-optimal large language models", https://arxiv.org/abs/2203.15556, of one variable). The
effective compute of an arm is the compute with which the baseline has the arm's loss; at a size it
is found from the arm's difference and the shape of the law, so that the baseline's own noise at
that size, which the difference does not contain, cancels.

Intervals are a parametric bootstrap: means and differences are sampled from t distributions with
the errors that the study found, and the law is fitted to each sample. Intervals from resampling
three seeds would be far too short. benchmarks/ladders.py simulates how often
the intervals cover.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from ablate.study.analysis.noise import Error
from ablate.study.analysis.stats import LEVEL, Interval
from ablate.study.plan.claims import LEAST

RATES = np.geomspace(0.02, 1.5, 200)
DRAWS = 2000

Numbers = Float[np.ndarray, " n"]


@dataclass(frozen=True)
class Law:
    """floor, scale, rate: E, B and a of each of n fits, with C as a multiple of `middle`."""

    floor: Numbers
    scale: Numbers
    rate: Numbers
    middle: float

    @classmethod
    def fitted(cls, compute: Numbers, losses: Float[np.ndarray, "n sizes"]) -> Law:
        """By least squares: exact in E and B, and by search over a."""
        logs = np.log(compute)
        x = logs - logs.mean()
        powers = np.exp(-RATES[:, None] * x)
        centered = powers - powers.mean(1, keepdims=True)
        scale = np.maximum(losses @ centered.T / (centered**2).sum(1), 0.0)
        floor = losses.mean(1, keepdims=True) - scale * powers.mean(1)
        wrong = losses[:, None] - floor[..., None] - scale[..., None] * powers
        best = (wrong**2).sum(2).argmin(1)
        rows = np.arange(len(losses))
        return cls(floor[rows, best], scale[rows, best], RATES[best], float(np.exp(logs.mean())))

    def above_floor(self, compute: Numbers) -> Float[np.ndarray, "n sizes"]:
        """B C^-a."""
        return self.scale[:, None] * (compute / self.middle) ** -self.rate[:, None]

    def losses(self, compute: Numbers) -> Float[np.ndarray, "n sizes"]:
        return self.floor[:, None] + self.above_floor(compute)

    def multipliers(
        self, compute: Numbers, differences: Float[np.ndarray, "n sizes"]
    ) -> Float[np.ndarray, "n sizes"]:
        """Logarithms of the effective compute as multiples of `compute`; infinite for a loss below
        the floor."""
        with np.errstate(divide="ignore", invalid="ignore"):
            left = 1 + differences / self.above_floor(compute)
            return np.where(left > 0, -np.log(left) / self.rate[:, None], np.inf)


@dataclass(frozen=True)
class Effective:
    """An arm's effective compute as multiples of the baseline's, by size, and how the logarithm
    to base 2 of that multiple changes with each doubling of the compute: infinite if large or small
    sizes have losses below the floor of the law, None if both have. samples, growths: of the
    bootstrap."""

    multiples: tuple[float, ...]
    intervals: tuple[Interval, ...]
    growth: float | None
    growth_interval: Interval
    samples: Float[np.ndarray, "n sizes"]
    growths: Numbers


def effective(
    compute: Sequence[float],
    baseline: Sequence[Sequence[float]],
    differences: Numbers,
    errors: Sequence[Error],
) -> Effective | None:
    """compute, baseline: by size, the compute and the losses of each seed; differences, errors: of
    an arm. None of fewer than `LEAST` sizes or two seeds, or a loss that does not fall."""
    sizes = np.asarray(compute)
    means = np.array([np.mean(losses) for losses in baseline])
    degrees = sum(len(losses) - 1 for losses in baseline)
    if len(sizes) < LEAST or not degrees or min(error.df for error in errors) < 1:
        return None
    law = Law.fitted(sizes, means[None])
    if not law.scale[0]:
        return None
    found = law.multipliers(sizes, differences[None])[0]
    variance = sum(float(np.var(losses)) * len(losses) for losses in baseline) / degrees
    of_mean = np.sqrt(variance / np.array([len(losses) for losses in baseline]))
    rng = np.random.default_rng(0)
    shape = (DRAWS, len(sizes))
    drawn = means + of_mean * rng.standard_t(degrees, shape)
    noise = rng.standard_t([error.df for error in errors], shape)
    other = differences + noise * [error.se for error in errors]
    logs = Law.fitted(sizes, drawn).multipliers(sizes, other)
    low, high = np.quantile(logs, [LEVEL / 2, 1 - LEVEL / 2], axis=0, method="nearest")
    x = np.log(sizes) - np.log(sizes).mean()
    weights = x / (x**2).sum()
    with np.errstate(invalid="ignore"):
        growth, growths = float(found @ weights), logs @ weights
    # A draw without a value may have any: it widens the interval on both sides.
    unknown = np.isnan(growths)
    ends = [
        float(np.quantile(np.where(unknown, end, growths), share, method="nearest"))
        for end, share in ((-np.inf, LEVEL / 2), (np.inf, 1 - LEVEL / 2))
    ]
    return Effective(
        tuple(np.exp(found).tolist()),
        tuple(Interval(*ends) for ends in np.exp([low, high]).T.tolist()),
        None if np.isnan(growth) else growth,
        Interval(*ends),
        np.exp(logs),
        np.where(unknown, -np.copysign(np.inf, growth), growths),
    )


def predicted(compute: Sequence[float], losses: Sequence[float]) -> float | None:
    """The loss of the largest size, by the law of the smaller ones; None if they are too few.
    losses: by size; that of the largest may be missing."""
    if len(compute) <= LEAST:
        return None
    sizes = np.asarray(compute)
    law = Law.fitted(sizes[:-1], np.asarray(losses)[None, : len(sizes) - 1])
    return float(law.losses(sizes[-1:])[0, 0])
