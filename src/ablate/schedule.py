"""Learning rate schedules, as factors of optimizer.lr: `factor(step, total_steps)`.

`step` counts optimizer steps from 0. The warm-up rises linearly and reaches the peak after
`warmup_steps`.
"""

from math import cos, pi
from typing import Annotated, Literal

from ablate.config.rules import Fraction, Int, Probability

Warmup = Annotated[int, Int(0, 2**31 - 1)] | Fraction | Literal["auto"]

# What warmup=auto stands for: this many steps, and at most this share of the training.
AUTO_STEPS = {"constant": 0, "cosine": 100, "linear": 100, "noam": 400}
AUTO_SHARE = 0.5

TOO_LONG = (
    "schedule.warmup={warmup} is longer than the training of {steps} steps; use"
    " schedule.warmup=auto, 0, or a share of the training such as 0.1"
)


def warmup_steps(schedule: str, warmup: Warmup, total_steps: int) -> int:
    """Optimizer steps of warm-up in a training of `total_steps`.

    schedule: the name of a function of this file.
    warmup: a whole number of steps, a share of the training (above 0 and below 1; at least one
    step), or "auto".
    """
    if warmup == "auto":
        return min(AUTO_STEPS[schedule], int(AUTO_SHARE * total_steps))
    assert not isinstance(warmup, str)
    return max(1, round(warmup * total_steps)) if 0 < warmup < 1 else int(warmup)


def _warm_up(step: int, warmup: int) -> float | None:
    """The factor while warming up, None after. Not zero at the first step, as in nanoGPT."""
    return (step + 1) / (warmup + 1) if step < warmup else None


def _progress(step: int, warmup: int, total_steps: int) -> float:
    """0 at the end of the warm-up, 1 at the last step."""
    return min(1.0, (step - warmup) / max(1, total_steps - warmup))


def cosine(step: int, total_steps: int, *, warmup: Warmup, floor: Probability) -> float:
    """Half a cosine from the peak down to `floor` (Loshchilov and Hutter 2017, SGDR).

    https://arxiv.org/abs/1608.03983, without restarts.
    """
    steps = warmup_steps("cosine", warmup, total_steps)
    if (warm := _warm_up(step, steps)) is not None:
        return warm
    falling = (1 + cos(pi * _progress(step, steps, total_steps))) / 2
    return floor + (1 - floor) * falling


def linear(step: int, total_steps: int, *, warmup: Warmup, floor: Probability) -> float:
    """A straight line from the peak down to `floor` (Devlin et al. 2018, appendix A.2).

    https://arxiv.org/abs/1810.04805.
    """
    steps = warmup_steps("linear", warmup, total_steps)
    if (warm := _warm_up(step, steps)) is not None:
        return warm
    return floor + (1 - floor) * (1 - _progress(step, steps, total_steps))


def constant(step: int, total_steps: int, *, warmup: Warmup) -> float:
    """Constant at the peak after the warm-up."""
    warm = _warm_up(step, warmup_steps("constant", warmup, total_steps))
    return 1.0 if warm is None else warm


def noam(step: int, total_steps: int, *, warmup: Warmup) -> float:
    """Inverse square root of the step (Vaswani et al. 2017, equation 3), scaled to a peak of 1.

    https://arxiv.org/abs/1706.03762. The paper's rate is this with
    optimizer.lr = dim**-0.5 * warmup**-0.5, where warmup is in steps.
    """
    count, peak = step + 1, max(1, warmup_steps("noam", warmup, total_steps))
    return min(count / peak, (peak / count) ** 0.5)
