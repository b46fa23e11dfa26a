"""Base class of the loggers, one class per file.

A logger only repeats the content of the run's folder (config.yaml, metrics.csv, figures,
result.json), so an error in a logger must not fail a run.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf

from ablate.config.public import public
from ablate.errors import UserError, first_line
from ablate.machine.redact import without_credentials

if TYPE_CHECKING:
    from lightning.pytorch.loggers import Logger

    from ablate.logger.role import Role

log = logging.getLogger(__name__)
WANDB = "ablate.logger.wandb.WandB"
OFF = "W&B is switched off (WANDB_MODE)"


class RunLogger(ABC):
    """Send one run to a tracking tool. `config` is the resolved config with `choices` and `ablate`.

    Nothing is opened before Lightning or one of the methods needs it. log_maps: attention maps are
    added at every validation, not only at the end. log_predictions: the run writes predictions.csv,
    which `close` adds. packages: those that it requires in addition to ablate's, without which no
    run begins.
    """

    log_maps = False
    log_predictions = False
    packages: Sequence[str] = ()

    lost = False  # whether something did not arrive

    def __init__(self, *, run_dir: Path, run_id: str, role: Role, config: dict[str, Any]) -> None:
        self.run_dir = Path(run_dir).resolve()
        self.run_id, self.role = run_id, role
        self.config: dict[str, Any] = without_credentials(config)
        self._finished = False

    @property
    @abstractmethod
    def loggers(self) -> Sequence[Logger]:
        """The loggers for Trainer(logger=...)."""

    @property
    @abstractmethod
    def where(self) -> str:
        """One line with the address of the run, for the user."""

    @abstractmethod
    def figure(self, name: str, path: Path, step: int | None = None) -> None:
        """Add a PNG, by default to the last step."""

    @abstractmethod
    def close(self, result: dict[str, Any]) -> None:
        """Add the content of result.json and close the run."""

    def last_step(self, reached: Mapping[str, int]) -> float:
        """The last step of the rows that are there; reached: `reached` of earlier attempts."""
        return reached.get(self.where, -1)

    def catch_up(self, rows: Iterable[Mapping[str, float]], reached: Mapping[str, int]) -> None:
        """Log the missing rows of metrics.csv: an attempt that was killed may have lost the rows
        that it had logged."""
        last = self.last_step(reached)
        for row in rows:
            if row["step"] > last:
                values = {name: value for name, value in row.items() if name != "step"}
                for each in self.loggers:
                    each.log_metrics(values, step=int(row["step"]))

    def reached(self, step: int) -> dict[str, int]:
        """After `finish`: `where` and the last step logged there; empty if something was lost."""
        return {} if self.lost else {self.where: step}

    def finish(self, result: dict[str, Any], figures: Sequence[Path] = ()) -> None:
        """Add the figures and `close`, once.

        Never raises: the result is already on disk and must not be lost.
        """
        if self._finished:
            return
        self._finished = True
        try:
            for path in figures:
                self.figure(path.stem, path)
            self.close(result)
        except Exception as error:
            self.lost = True
            log.warning(
                "ablate: %s could not be closed: %s", type(self).__name__, first_line(error)
            )


def wandb_node(logger: Any) -> Any:
    """The node of Weights & Biases in the node `logger`, itself or one of several; None without."""
    if not isinstance(logger, Mapping):
        return None
    return logger if logger.get("_target_") == WANDB else wandb_node(logger.get("wandb"))


def refuse_secrets(cfg: DictConfig) -> None:
    """Raise UserError for a key of Weights & Biases with a value of ${oc.env:NAME}, which W&B would
    write into separate files."""
    if (node := wandb_node(cfg.logger)) is None:
        return
    place = "logger" if node is cfg.logger else "logger.wandb"
    for key, value in public(lambda: OmegaConf.to_container(node, resolve=True)).items():
        if "${oc.env:" in str(value):
            raise UserError(
                f"{place}.{key}={value}: W&B writes it into its files, and a value of oc.env is not"
                f" to be written; {str(value).replace('oc.env:', 'environment:')} may be"
            )
