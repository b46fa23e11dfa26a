"""Several loggers at once."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.utils import instantiate

from ablate.errors import first_line
from ablate.logger import RunLogger

if TYPE_CHECKING:
    from lightning.pytorch.loggers import Logger

log = logging.getLogger(__name__)


class Many(RunLogger):
    """A logger for each node. wandb, tensorboard: as their own options have them."""

    def __init__(
        self,
        *,
        wandb: Mapping[str, Any] | None = None,
        tensorboard: Mapping[str, Any] | None = None,
        **run: Any,
    ) -> None:
        super().__init__(**run)
        nodes = [node for node in (wandb, tensorboard) if node]
        # Not by keyword to `instantiate`, since its own first parameter is called config.
        self.each: list[RunLogger] = [
            instantiate(node, _partial_=True, _recursive_=False)(**run) for node in nodes
        ]
        self.log_maps = any(each.log_maps for each in self.each)
        self.log_predictions = any(each.log_predictions for each in self.each)

    @property
    def loggers(self) -> list[Logger]:
        return [logger for each in self.each for logger in each.loggers]

    @property
    def where(self) -> str:
        return "; ".join(each.where for each in self.each)

    def catch_up(self, rows: Iterable[Mapping[str, float]], reached: Mapping[str, int]) -> None:
        every = list(rows)
        for each in self.each:
            each.catch_up(every, reached)

    def reached(self, step: int) -> dict[str, int]:
        return {where: last for each in self.each for where, last in each.reached(step).items()}

    def figure(self, name: str, path: Path, step: int | None = None) -> None:
        for each in self.each:
            if step is None or each.log_maps:
                try:
                    each.figure(name, path, step)
                except Exception as error:  # the others are still to be closed
                    each.lost = True
                    log.warning("ablate: %s: no figure (%s)", each.where, first_line(error))

    def close(self, result: dict[str, Any]) -> None:
        for each in self.each:
            each.finish(result)
        self.lost = any(each.lost for each in self.each)
