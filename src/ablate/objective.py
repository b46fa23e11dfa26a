"""What a sweeper that searches, such as Optuna's, goes by: the value of the task's own metric."""

from collections.abc import Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf

from ablate.errors import UserError
from ablate.known import locate

DIRECTIONS = {"min": "minimize", "max": "maximize"}


def value_of(result: Mapping[str, Any]) -> float | None:
    """From what result.json holds; None where a run has none."""
    value: float | None = (result.get("metric") or {}).get("value")
    return value


def check_direction(sweeper: DictConfig, task: DictConfig) -> None:
    """Refuses a search that would look for the worst value: Optuna's minimises unless told."""
    given = OmegaConf.select(sweeper, "direction")
    if given is None:
        return
    listed = given if OmegaConf.is_list(given) else [given]
    names = [str(getattr(one, "name", one)) for one in listed]
    metric, mode = locate(task._target_).metric, locate(task._target_).mode
    if names != [DIRECTIONS[mode]]:
        raise UserError(
            f"hydra.sweeper.direction={','.join(names)}: a run is judged by {metric} alone, whose"
            f" best is the {mode}imum; write hydra.sweeper.direction={DIRECTIONS[mode]}"
        )
