"""Lightning callbacks of the user: the group `callbacks`, and `+callbacks.NAME._target_=...`.

    python -m ablate callbacks=early_stopping callbacks.early_stopping.patience=5
    python -m ablate callbacks=[early_stopping,device_stats]

A callback counts in the id of a run. Its `state_dict` is in every checkpoint, so that a run that is
resumed ends as one that was not stopped, if all that the callback remembers is there.
"""

from collections.abc import Collection, Mapping, Sequence
from importlib.util import find_spec
from typing import Annotated, Any, Literal

from hydra.errors import InstantiationException
from lightning.pytorch import callbacks as lightning_callbacks
from lightning.pytorch.callbacks import Callback, DeviceStatsMonitor

from ablate.config.make import make
from ablate.config.rules import Count, Real
from ablate.errors import RunFailed, UserError, suggest

# Why a callback of Lightning cannot be used, and its replacement.
REFUSED = {
    "StochasticWeightAveraging": "counts epochs, and training is one stream of steps here;"
    " task.ema=0.99 averages the weights",
    "WeightAveraging": "would be measured by other weights than those that are kept;"
    " task.ema=0.99 averages the weights",
    "ModelCheckpoint": "is not needed: a run keeps its best and its last weights;"
    " checkpoint_every=N saves more often",
    "OnExceptionCheckpoint": "is not needed: a run resumes from its last checkpoint",
    "GradientAccumulationScheduler": "would change the data of a step; use"
    " trainer.accumulate_grad_batches=N",
    "BatchSizeFinder": "would change the data of a step; use data.batch_size=N",
    "LearningRateFinder": "reads only training losses; use study.tune={optimizer.lr: [...]}",
    "ProgressBar": "is not needed: a run shows its progress itself",
    "Timer": "would end a run at another step on every machine; trainer.max_steps=N",
}


def own_callbacks(nodes: Mapping[str, Any] | None, *, logged: bool) -> list[Callback]:
    """Make the callbacks of the key `callbacks`. logged: whether the run has a logger.

    Raises UserError for values that are not callbacks, or cannot be used.
    """
    return [_callback(f"callbacks.{name}", node, logged) for name, node in (nodes or {}).items()]


def _callback(where: str, node: Any, logged: bool) -> Callback:
    if not isinstance(node, Mapping) or "_target_" not in node:
        raise UserError(f"{where}: must be a node with _target_, the class of a Lightning callback")
    try:
        callback = make(node, _convert_="all")
    except InstantiationException as error:
        why = error.__cause__ or error
        raise UserError(f"{where}: {node['_target_']} cannot be made: {why}") from error
    if not isinstance(callback, Callback):
        raise UserError(
            f"{where}._target_={node['_target_']}: is not a lightning.pytorch.callbacks.Callback"
        )
    for kind in type(callback).__mro__:
        if kind.__module__.startswith("lightning.") and kind.__name__ in REFUSED:
            raise UserError(f"{where}: {kind.__name__} {REFUSED[kind.__name__]}")
    if isinstance(callback, DeviceStatsMonitor) and find_spec("psutil") is None:
        raise UserError(f"{where}: DeviceStatsMonitor needs a package: pip install psutil")
    if not logged and type(callback).__name__ in ("LearningRateMonitor", "DeviceStatsMonitor"):
        raise UserError(
            f"{where}: {type(callback).__name__} needs a logger; logger=tensorboard, logger=wandb"
        )
    return callback


class EarlyStopping(lightning_callbacks.EarlyStopping):
    """Training ends after `patience` validations in a row that were not better by `min_delta` than
    the best before them (early stopping, Prechelt 1998).

    monitor: a metric of validation, as metrics.csv names it. mode: which of its values are better.
    """

    def __init__(
        self,
        *,
        monitor: str,
        mode: Literal["min", "max"],
        patience: Count,
        min_delta: Annotated[float, Real(0)],
    ) -> None:
        super().__init__(
            monitor,
            mode=mode,
            patience=patience,
            min_delta=min_delta,
            check_on_train_epoch_end=False,  # training is one epoch
        )

    def require_monitor(self, measures: Collection[str]) -> None:
        """Raise UserError unless `monitor` is one of the measures of validation; none: not known
        before training."""
        names = [f"val/{measure}" for measure in measures]
        if names and self.monitor not in names:
            raise UserError(self._unknown(names))

    def on_train_start(self, trainer: Any, *_: Any) -> None:
        # A run that was killed after the last validation has nothing left to train.
        if self.wait_count >= self.patience:
            trainer.should_stop = True

    def on_validation_end(self, trainer: Any, task: Any) -> None:
        if self.monitor not in trainer.callback_metrics:
            names = sorted(n for n in trainer.callback_metrics if n.startswith("val/"))
            raise RunFailed(self._unknown(names))
        super().on_validation_end(trainer, task)

    def _unknown(self, names: Sequence[str]) -> str:
        return (
            f"callbacks.early_stopping.monitor={self.monitor}: no such metric; allowed:"
            f" {', '.join(names)}{suggest(self.monitor, names)}"
        )
