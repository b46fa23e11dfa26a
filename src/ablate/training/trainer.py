"""Lightning's Trainer for a run, and the length of training."""

import os
from collections.abc import Sequence
from pathlib import Path
from subprocess import Popen
from typing import Any

import lightning.pytorch as L
from hydra.errors import InstantiationException
from lightning.pytorch.callbacks import Callback, ProgressBar
from lightning.pytorch.plugins.environments import (
    ClusterEnvironment,
    LightningEnvironment,
    SLURMEnvironment,
    TorchElasticEnvironment,
)
from lightning.pytorch.strategies.launchers import subprocess_script
from lightning.pytorch.utilities import rank_zero_only as on_first_process
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from omegaconf import DictConfig, OmegaConf

import ablate.training.quiet  # noqa: F401
from ablate.config.conflicts import FLOAT8, TOO_LONG, too_long
from ablate.config.make import make
from ablate.data import Data
from ablate.errors import UserError
from ablate.machine.version import require
from ablate.optimizer.schedule import AUTO_STEPS, warmup_steps
from ablate.training.compile import CompileNotice
from ablate.training.parallel import Sharing
from ablate.training.preflight import accelerator, tasks_of_srun
from ablate.training.progress import progress

# It would kill the first process without a word; ablate.machine.processes reports the cause.
subprocess_script._launch_process_observer = lambda child_processes: None


def make_trainer(
    node: DictConfig,
    schedule: DictConfig,
    run_dir: Path,
    data: Data,
    callbacks: Sequence[Callback],
) -> L.Trainer:
    """Make the Trainer with its progress display; set `data.train_batches`."""
    settings: dict[str, Any] = OmegaConf.to_container(node, resolve=True)  # type: ignore[assignment]
    steps, every = length_of_training(settings, data)
    check_warmup(schedule, steps)
    settings |= {
        "max_steps": steps,
        "max_epochs": None,
        "val_check_interval": every,
        "check_val_every_n_epoch": None,
        # Lightning warns of an interval longer than the training, which would log no training loss.
        "log_every_n_steps": min(settings["log_every_n_steps"], steps),
    }
    data.val_examples = settings.pop("val_examples")
    shards = settings.pop("shards")
    if settings["strategy"] == "fsdp":  # Lightning's own needs a GPU
        settings |= {"strategy": Sharing(shards=shards), "inference_mode": False}
    settings |= precision_of(settings.pop("precision"), settings["accelerator"])
    if (cluster := environment(settings["devices"])) is not None:
        settings["plugins"] = [*settings.get("plugins", ()), cluster]
    data.train_batches = steps * settings["accumulate_grad_batches"]
    shown = progress()
    try:
        trainer: L.Trainer = make(
            settings,
            callbacks=[*callbacks, CompileNotice(), shown],
            enable_progress_bar=isinstance(shown, ProgressBar),
            logger=False,
            default_root_dir=str(run_dir),
            enable_checkpointing=False,
            enable_model_summary=False,
            use_distributed_sampler=False,
            num_sanity_val_steps=0,
            _convert_="all",
        )
    except InstantiationException as error:
        if not isinstance(cause := error.__cause__, MisconfigurationException | ValueError):
            raise
        raise UserError(f"trainer: Lightning rejects its values ({cause})") from error
    # The run has its own handlers (ablate.machine.stop).
    trainer._signal_connector.register_signal_handlers = lambda: None  # type: ignore[method-assign]
    return trainer


def precision_of(precision: str, wanted: str) -> dict[str, Any]:
    """The argument of a Trainer for trainer.precision. wanted: trainer.accelerator. UserError
    without the package that float8 needs."""
    if precision != FLOAT8:
        return {"precision": precision}
    require("torchao", f"trainer.precision={precision}", "float8")
    from ablate.training.float8 import Float8

    plugin = Float8(accelerator(wanted)[0])
    if plugin.emulated:
        line = f"ablate: trainer.precision={precision}: emulated, since this machine has no float8"
        on_first_process(print)(line)
    return {"plugins": [plugin]}


def environment(devices: int | list[int] | str) -> ClusterEnvironment | None:
    """The launcher of a run's processes in a Slurm job: srun, or the run itself; None to let
    Lightning choose, which would take the variables of a shell of salloc for those of srun."""
    if "SLURM_JOB_ID" not in os.environ or TorchElasticEnvironment.detect():
        return None
    if tasks_of_srun() == 1:
        return LightningEnvironment()
    if isinstance(devices, int):  # Lightning requires it, and srun --ntasks does not set it
        os.environ.setdefault("SLURM_NTASKS_PER_NODE", str(devices))
    return SLURMEnvironment()


def started_by(trainer: L.Trainer) -> list[Popen[bytes]]:
    """The processes that Lightning has started for a run, on this machine."""
    return getattr(trainer.strategy.launcher, "procs", [])


def check_warmup(schedule: DictConfig, steps: int) -> None:
    """Raise UserError if the warm-up is longer than training; print it if `auto` shortens it."""
    warmup = schedule.get("warmup", 0)  # a custom schedule may have none
    name = schedule._target_.removeprefix("ablate.optimizer.schedule.").partition(".")[0]
    if warmup == "auto":
        usual = AUTO_STEPS.get(name, 0)
        if usual and (fewer := warmup_steps(name, warmup, steps)) < usual:
            line = f"ablate: warm-up: {fewer} of {steps} steps (schedule.warmup=auto)"
            on_first_process(print)(line)
    elif too_long(warmup, steps):
        raise UserError(TOO_LONG.format(warmup=warmup, steps=steps))


def length_of_training(settings: dict[str, Any], data: Data) -> tuple[int, int]:
    """Return the optimizer steps of the run, and the training batches between validations."""
    epoch = data.batches_per_epoch()
    steps = settings["max_steps"]
    if settings["max_epochs"] is not None:
        by_epoch = max(1, settings["max_epochs"] * epoch // settings["accumulate_grad_batches"])
        steps = by_epoch if steps == -1 else min(steps, by_epoch)
    every = settings["val_check_interval"]
    if every is None:
        every = (settings["check_val_every_n_epoch"] or 1) * epoch
    # Validation, and the checkpoint after it, must fall between two optimizer steps.
    accumulate = settings["accumulate_grad_batches"]
    return steps, min(-(-every // accumulate), steps) * accumulate
