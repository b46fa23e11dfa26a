"""TensorBoard (https://www.tensorflow.org/tensorboard): event files in the run's folder."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ablate.logger import RunLogger

if TYPE_CHECKING:
    from lightning.pytorch.loggers import TensorBoardLogger


class TensorBoard(RunLogger):
    """Log metrics as scalars and figures as images; config and results go to HPARAMS and text.

    log_maps: attention maps at every validation as well.
    """

    packages = ("tensorboard",)

    def __init__(self, *, log_maps: bool = False, **run: Any) -> None:
        super().__init__(**run)
        self.log_maps = log_maps

    @property
    def loggers(self) -> Sequence[TensorBoardLogger]:
        return [self._logger]

    @cached_property
    def _logger(self) -> TensorBoardLogger:
        from lightning.pytorch.loggers import TensorBoardLogger

        class Logger(TensorBoardLogger):
            def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
                super().log_metrics(metrics, step)
                self.experiment.flush()  # a kill loses nothing

        return Logger(self.run_dir, name="", version="tensorboard", default_hp_metric=False)

    @property
    def where(self) -> str:
        return f"tensorboard --logdir {shlex.quote(self._logger.log_dir)}"

    def last_step(self, reached: Mapping[str, int]) -> float:
        if self.where not in reached and any(Path(self._logger.log_dir).glob("events.*")):
            return math.inf
        return super().last_step(reached)

    def figure(self, name: str, path: Path, step: int | None = None) -> None:
        from matplotlib.image import imread

        image = imread(path)
        self._logger.experiment.add_image(f"figures/{name}", image, step, dataformats="HWC")

    def close(self, result: dict[str, Any]) -> None:
        self._logger.log_hyperparams(self.config, metrics=result.get("metrics", {}))
        for name, content in {"config": self.config, "result": result}.items():
            text = json.dumps(content, indent=2, default=str)
            self._logger.experiment.add_text(name, f"```\n{text}\n```")
        self._logger.finalize("success")
