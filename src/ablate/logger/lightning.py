"""Any logger with Lightning's interface (https://lightning.ai/docs/pytorch/stable/api_references.html)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from hydra.errors import InstantiationException
from hydra.utils import instantiate

from ablate.config.rules import Keys
from ablate.errors import UserError, first_line
from ablate.logger import RunLogger

if TYPE_CHECKING:
    from lightning.pytorch.loggers import Logger


class Lightning(RunLogger):
    """instance: the node of the logger, with its class in `_target_`. It is opened with the run's
    config as hyperparameters, and gets the final metrics at the end."""

    def __init__(self, *, instance: Annotated[Mapping[str, Any], Keys()], **run: Any) -> None:
        super().__init__(**run)
        self.node = instance

    @cached_property
    def _logger(self) -> Logger:
        name = self.node.get("_target_") if isinstance(self.node, Mapping) else None
        if not isinstance(name, str):
            raise UserError(
                "logger.instance: needs _target_, the class of a logger, such as"
                " lightning.pytorch.loggers.MLFlowLogger"
            )
        try:
            logger: Logger = instantiate(self.node, _convert_="all")
        except InstantiationException as error:
            cause = error.__cause__ or error
            raise UserError(f"logger.instance: {name}: {first_line(cause)}") from error
        for method in ("log_metrics", "log_hyperparams", "finalize"):
            if not hasattr(logger, method):
                raise UserError(
                    f"logger.instance: {name} has no {method}, so it is not a Lightning logger"
                )
        logger.log_hyperparams(self.config)
        return logger

    @property
    def loggers(self) -> list[Logger]:
        return [self._logger]

    @property
    def where(self) -> str:
        name, version = (getattr(self._logger, key, None) for key in ("name", "version"))
        return " ".join(str(part) for part in (type(self._logger).__name__, name, version) if part)

    def figure(self, name: str, path: Path, step: int | None = None) -> None:
        """Lightning's loggers have no common way to log an image."""

    def close(self, result: dict[str, Any]) -> None:
        self._logger.log_metrics(result.get("metrics", {}), step=result.get("steps"))
        self._logger.finalize("success" if result.get("status") == "finished" else "failed")
