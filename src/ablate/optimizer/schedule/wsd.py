"""Warm-up, stable, decay (WSD): Hu et al. 2024, MiniCPM, section 4.2, https://arxiv.org/abs/2404.06395.

The shape 1 - sqrt: Haegele et al. 2024, section 3.2, https://arxiv.org/abs/2405.18392.
"""

from math import sqrt
from typing import Annotated, Literal

from ablate.config.rules import Fraction, Int, Probability
from ablate.errors import UserError
from ablate.optimizer.schedule import Warmup, warming_up, warmup_steps

Decay = Annotated[int, Int(2, 2**31 - 1)] | Fraction


def wsd(
    step: int,
    total_steps: int,
    *,
    warmup: Warmup,
    decay: Decay,
    shape: Literal["linear", "sqrt"],
    floor: Probability,
) -> float:
    """At the peak; from the first of the last `decay` steps on falling as 1 - t, or as 1 - sqrt(t),
    with t from 0 at that step to 1 after the last, a rate of `floor`.

    decay: steps (a single one would be at the peak), or a share of the training.
    """
    steps = warmup_steps("wsd", warmup, total_steps)
    falling = max(1, round(decay * total_steps)) if decay < 1 else int(decay)
    if steps + falling > total_steps:
        raise UserError(
            f"schedule.warmup and schedule.decay={decay} are {steps} and {falling} steps, more than"
            f" the training of {total_steps}; shorten one"
        )
    t = min(1.0, max(0.0, (step - (total_steps - falling)) / falling))
    left = 1 - (t if shape == "linear" else sqrt(t))
    return warming_up(step, steps) * (floor + (1 - floor) * left)
