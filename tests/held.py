"""A language model that writes down what each process holds of the training at its end."""

import json
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.distributed.tensor import DTensor

from ablate.task.causal_lm import CausalLM

OVERRIDE = "task._target_=held.Held"


class Held(CausalLM):
    def on_train_end(self) -> None:
        """HELD_rank.json: numbers of parameters, and of the optimizer's state of them."""
        optimizer: Any = self.optimizers()
        states = optimizer.optimizer.state.values()
        found = {
            "parameters": sum(here(p) for p in self.model.parameters()),
            "state": sum(here(value) for state in states for value in state.values()),
        }
        path = Path(self.trainer.default_root_dir, f"HELD_{self.global_rank}.json")
        path.write_text(json.dumps(found))


def here(value: Tensor) -> int:
    """Numbers of a tensor, or of this process's part of one; what counts steps is none."""
    local = value.to_local() if isinstance(value, DTensor) else value
    return local.numel() if local.dim() else 0
