"""No decay."""

from ablate.optimizer.schedule import Warmup, warming_up, warmup_steps


def constant(step: int, total_steps: int, *, warmup: Warmup) -> float:
    """Constant at the peak after the warm-up."""
    warm = warming_up(step, warmup_steps("constant", warmup, total_steps))
    return 1.0 if warm is None else warm
