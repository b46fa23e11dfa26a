"""A language model whose training meets an accident, as the environment variable ACCIDENT says.

The configuration stays the same, and so does the run's identity, whether there is one or not.
"""

import math
import os
import signal
from typing import Any

from torch import Tensor

from ablate.task.causal_lm import CausalLM

OVERRIDE = "task._target_=accident.AccidentProne"
SIGNALS = {"kill": signal.SIGKILL, "interrupt": signal.SIGINT}


class AccidentProne(CausalLM):
    """ACCIDENT="what rank step": kill or interrupt the process group, die alone, or nan."""

    def loss(self, batch: dict[str, Any]) -> Tensor:
        loss = super().loss(batch)
        what, rank, step = os.environ.get("ACCIDENT", "none 0 0").split()
        if (self.global_rank, self.global_step) == (int(rank), int(step)):
            if what in SIGNALS:
                os.killpg(0, SIGNALS[what])
            if what == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            if what == "nan":
                loss = loss * math.nan
        return loss
