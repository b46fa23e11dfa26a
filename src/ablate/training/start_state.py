"""init_optimizer: a run that starts from another one's weights goes on with its optimizer."""

from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities import rank_zero_only as on_first_process

from ablate.errors import UserError, few
from ablate.machine.terminal.say import say
from ablate.run_files.checkpoint_io import read_state
from ablate.task import Task
from ablate.training.average import Average, by_optimizer

OTHER = "leave init_optimizer out"


class StartState(Callback):
    """Load, before the first step, the state of the optimizer from a run's last checkpoint, and the
    copies of the model (moving average, reference) that both have.

    Rates, betas and weight decay are those of the new run.
    """

    def __init__(self, path: Path, task: Task) -> None:
        self.path = path
        if new := (task.model.started_from or {}).get("new"):
            raise UserError(
                f"init_optimizer=true: the other run has no {few(new, ', ')}, so its optimizer has"
                f" no state for it; {OTHER}"
            )
        if by_optimizer(task):
            raise UserError(
                "init_optimizer=true: the optimizer averages over its steps, from the first on;"
                f" {OTHER}, or take another"
            )

    def on_train_start(self, trainer: Any, task: Any) -> None:
        if trainer.global_step:  # resumed
            return
        state = read_state(self.path)
        (saved,) = state["optimizer_states"]
        load(trainer.optimizers[0], saved, str(self.path))
        own = task.state_dict()
        copies = {
            name: value
            for name, value in state["state_dict"].items()
            if name.startswith("reference.") and name in own
        }
        task.load_state_dict(copies, strict=False)
        kept = {"the optimizer's state", *(name.partition(".")[0] for name in copies)}
        for callback in trainer.callbacks:
            if isinstance(callback, Average) and Average.__name__ in state["callbacks"]:
                callback.load_state_dict(state["callbacks"][Average.__name__])
                kept.add("average")
        on_first_process(say)(
            f"init_optimizer: {', '.join(sorted(kept))} and the weights after step"
            f" {state['global_step']:,} of {self.path.parent.parent} are kept; steps, schedule,"
            " callbacks and the order of the data start from the beginning"
        )


def load(optimizer: torch.optim.Optimizer, saved: dict[str, Any], where: str) -> None:
    """Load the state of the parameters, not the settings. Raises UserError if it does not fit."""
    own = optimizer.state_dict()
    numbers = [[group["params"] for group in each["param_groups"]] for each in (own, saved)]
    if numbers[0] != numbers[1]:
        raise UserError(
            f"init_optimizer=true: the optimizer of {where} trained other parameters, as with"
            f" another model.freeze or model.tie_embeddings; {OTHER}"
        )
    optimizer.load_state_dict({"state": saved["state"], "param_groups": own["param_groups"]})
