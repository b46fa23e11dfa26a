"""Half a cosine: Loshchilov and Hutter 2017, SGDR, https://arxiv.org/abs/1608.03983."""

from math import cos, pi

from ablate.config.rules import Probability
from ablate.optimizer.schedule import Warmup, progress, warming_up, warmup_steps


def cosine(step: int, total_steps: int, *, warmup: Warmup, floor: Probability) -> float:
    """From the peak to `floor` after the last step, without restarts."""
    steps = warmup_steps("cosine", warmup, total_steps)
    falling = (1 + cos(pi * progress(step, steps, total_steps))) / 2
    return warming_up(step, steps) * (floor + (1 - floor) * falling)
