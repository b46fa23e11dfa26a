"""Load a run from its folder: config, model with its best weights, data, task."""

import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig
from torch import Tensor

from ablate.config.saved import names_file, read_config
from ablate.data import Data
from ablate.errors import UserError, few
from ablate.machine.terminal.say import say
from ablate.model.base import Model
from ablate.run_files import RESULT, require_run
from ablate.run_files.checkpoint_io import read_weights
from ablate.run_files.records import read_result, require_weights
from ablate.task import Task
from ablate.training.custom_code import say_edited


@dataclass(repr=False)
class Run:
    """The result of `load`. The model is on the CPU and in evaluation mode."""

    path: Path
    config: DictConfig
    result: dict[str, Any]
    data: Data
    task: Task

    @property
    def model(self) -> Model:
        return self.task.model

    @property
    def title(self) -> str:
        """The title of its figures: model, score, data, seed and folder, in one line."""
        choices = self.config.choices
        score = choices.get("model.attention")
        model = f"{choices.model}, {score} attention" if score else choices.model
        return f"{model}, on {choices.data}, seed {self.config.seed}: {self.path.resolve().name}"

    def show(self, index: int | None = None, folder: str | Path | None = None) -> list[Path]:
        """Draw the attention of every head in a validation example, a PNG for each layer; return
        their paths. index: None: as after training. folder: for the PNGs; None: figures/ of the
        run."""
        from ablate.task.attention import attention_figures
        from ablate.task.presenter import val_example

        where = Path(folder) if folder is not None else self.path / "figures"
        examples = None if index is None else [val_example(self.data, index)]
        return attention_figures(self.task, where, examples=examples, run=self.title)

    def __repr__(self) -> str:
        choices, metric = self.config.choices, self.result.get("metric") or {}
        value = metric.get("value")
        measured = "not measured" if value is None else f"{metric['name']} {value:.4g}"
        return (
            f"Run({choices.model} on {choices.data}, seed {self.config.seed}, {measured},"
            f" {self.path})"
        )


def load(run_dir: str | Path, *, allow: Collection[str] = ()) -> Run:
    """Rebuild a run from its folder; UserError if it is not a run, or has no weights.

    allow: modules besides ablate whose classes its config may name. Their code is executed.
    """
    from ablate.training.build import data_of_run, make_task

    path = Path(run_dir)
    require_run(path, str(path))
    weights = require_weights(path, str(path))
    config = read_config(path / "config.yaml", allow)
    with names_file(path / "config.yaml"):
        data = data_of_run(path, config)
        task = make_task(config, data, model_of(config, data))
    result, wrong = read_result(path)
    if (identity := result.get("run_id")) is None:
        why = wrong or f"{path / RESULT} has no run id"
        say(f"{why}; could not verify that the weights belong to this run", file=sys.stderr)
    load_weights(task, weights, identity)
    say_edited(path, config, sys.stderr)
    task.eval()
    return Run(path=path, config=config, result=result, data=data, task=task)


def load_weights(task: Task, path: Path, run_id: str | None) -> None:
    """Load weights into the task; raise UserError if they are those of another run or model."""
    weights = read_weights(path, run_id)
    require_fitting(task, weights, path)
    task.load_state_dict(weights)


def require_fitting(task: Task, weights: Mapping[str, Tensor], path: Path) -> None:
    """Raise UserError unless the weights have the names and shapes of the task's."""
    expected, loaded = (
        {(name, value.shape) for name, value in state.items()}
        for state in (task.state_dict(), weights)
    )
    if wrong := sorted({name for name, _ in expected ^ loaded}):
        raise UserError(f"{path} does not fit the model of config.yaml: {few(wrong, ', ')}")


def model_of(config: DictConfig, data: Data) -> Model:
    """The model of a run, whose weights are still to be loaded: they have every parameter, so that
    none is drawn, learned by word2vec or downloaded again."""
    from ablate.config.make import make
    from ablate.kernel.auto import Auto
    from ablate.training.build import make_model

    kernel = make(config.kernel)
    if kernel.unavailable():  # kernels do not change results; the run may be from elsewhere
        kernel = Auto()
    return make_model(without_weights(config), data, kernel)


def without_weights(config: DictConfig) -> DictConfig:
    """Leave out weights that timm would read, or download, before ours; they may be pickles."""
    config = config.copy()
    if config.model.get("pretrained"):
        config.model.pretrained = False
    (config.model.get("args") or {}).pop("checkpoint_path", None)
    return config
