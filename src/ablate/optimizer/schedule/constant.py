"""No decay."""

from ablate.optimizer.schedule import Warmup, warming_up, warmup_steps


def constant(step: int, total_steps: int, *, warmup: Warmup) -> float:
    """Constant at the peak after the warm-up."""
    return warming_up(step, warmup_steps("constant", warmup, total_steps))
