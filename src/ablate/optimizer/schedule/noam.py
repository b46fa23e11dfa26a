"""Inverse square root of the step: Vaswani et al. 2017, https://arxiv.org/abs/1706.03762."""

from ablate.optimizer.schedule import Warmup, warmup_steps


def noam(step: int, total_steps: int, *, warmup: Warmup) -> float:
    """Equation 3 of the paper, scaled to a peak of 1.

    The paper's rate is this with optimizer.lr = dim**-0.5 * warmup**-0.5, with warmup in steps.
    """
    count, peak = step + 1, max(1, warmup_steps("noam", warmup, total_steps))
    return min(count / peak, (peak / count) ** 0.5)
