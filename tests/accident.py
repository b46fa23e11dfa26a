"""A language model whose training meets an accident, as the environment variable ACCIDENT says.

The configuration stays the same, and so does the run's identity, whether there is one or not.
"""

import math
import os
import signal
import time
from pathlib import Path
from typing import Any

from torch import Tensor

from ablate.task.causal_lm import CausalLM
from ablate.training.checkpoint import Checkpoints

OVERRIDE = "task._target_=accident.AccidentProne"
SIGNALS = {"kill": signal.SIGKILL, "interrupt": signal.SIGINT}

if os.environ.get("LOCAL_RANK") == "1" and os.environ.get("ACCIDENT", "").startswith("start"):
    os.kill(os.getppid() if os.environ["ACCIDENT"] == "start 0" else os.getpid(), signal.SIGKILL)


class AccidentProne(CausalLM):
    """ACCIDENT="what rank step [seed]", several with a semicolon between them.

    what: kill or interrupt the process group, die or stop alone, nan, raise, hang, or pause until
    somebody asks for a stop; die-once and the like spare the tries after it. validation: stop in
    the first batch of the validation after that step. ACCIDENT="start rank": this one of two
    processes dies while the second one starts.
    """

    def losses(self, batch: dict[str, Any]) -> dict[str, Tensor]:
        terms = super().losses(batch)
        for accident in filter(None, os.environ.get("ACCIDENT", "").split(";")):
            what, *place = accident.split()
            if [self.global_rank, self.global_step, self.seed][: len(place)] == [*map(int, place)]:
                terms["loss"] = self.meet(what, terms["loss"])
        return terms

    def evaluate(self, batch: dict[str, Any]) -> None:
        if os.environ.get("ACCIDENT") == f"validation {self.global_rank} {self.global_step}":
            os.kill(os.getpid(), signal.SIGTERM)
        super().evaluate(batch)

    def meet(self, what: str, loss: Tensor) -> Tensor:
        what, _, once = what.partition("-")
        if once:
            met = Path(self.trainer.default_root_dir, "met")
            if met.exists():
                return loss
            met.touch()
        if what in SIGNALS:
            os.killpg(0, SIGNALS[what])
        if what == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if what == "stop":
            os.kill(os.getpid(), signal.SIGTERM)
        if what == "raise":
            raise ValueError("what a part of one's own may raise")
        while what == "hang":
            time.sleep(1)
        (checkpoints,) = (one for one in self.trainer.callbacks if isinstance(one, Checkpoints))
        while what == "pause" and not checkpoints.stop.signal:
            time.sleep(0.05)
        return loss * math.nan if what == "nan" else loss
