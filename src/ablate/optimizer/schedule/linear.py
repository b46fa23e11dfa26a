"""A straight line: Devlin et al. 2018, BERT, appendix A.2, https://arxiv.org/abs/1810.04805."""

from ablate.config.rules import Probability
from ablate.optimizer.schedule import Warmup, progress, warming_up, warmup_steps


def linear(step: int, total_steps: int, *, warmup: Warmup, floor: Probability) -> float:
    """From the peak to `floor` after the last step."""
    steps = warmup_steps("linear", warmup, total_steps)
    falling = 1 - progress(step, steps, total_steps)
    return warming_up(step, steps) * (floor + (1 - floor) * falling)
