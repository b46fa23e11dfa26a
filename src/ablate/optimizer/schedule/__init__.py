"""Learning rate schedules, as factors of optimizer.lr: `factor(step, total_steps)`.

`step` counts optimizer steps from 0. The warm-up rises linearly and reaches the peak after
`warmup_steps`.
"""

from typing import Annotated, Literal

from ablate.config.rules import Fraction, Int

Warmup = Annotated[int, Int(0, 2**31 - 1)] | Fraction | Literal["auto"]

# The value of warmup=auto: this many steps, and at most this share of the training.
AUTO_STEPS = {"constant": 0, "cosine": 100, "linear": 100, "noam": 400, "wsd": 100}
CUSTOM_STEPS = 100  # of other schedules
AUTO_SHARE = 0.5


def warmup_steps(schedule: str, warmup: Warmup, total_steps: int) -> int:
    """Optimizer steps of warm-up in a training of `total_steps`.

    schedule: the name of an option, such as cosine.
    warmup: an integer number of steps, a share of the training (above 0 and below 1; at least one
    step), or "auto".
    """
    if warmup == "auto":
        return min(AUTO_STEPS.get(schedule, CUSTOM_STEPS), int(AUTO_SHARE * total_steps))
    assert not isinstance(warmup, str)
    return max(1, round(warmup * total_steps)) if 0 < warmup < 1 else int(warmup)


def warming_up(step: int, warmup: int) -> float:
    """The factor of the warm-up, 1 after it. Not zero at the first step, as in nanoGPT."""
    return min(1.0, (step + 1) / (warmup + 1))


def progress(step: int, warmup: int, total_steps: int) -> float:
    """0 until the end of the warm-up, 1 after the last step, which is thus short of it by one."""
    return min(1.0, max(0.0, (step - warmup) / max(1, total_steps - warmup)))
