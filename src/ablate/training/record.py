"""Records of a run besides its weights: config.yaml, result.json, provenance.json.

Readers may look at any time: every file is written under a temporary name, then renamed.
"""

import csv
import os
import platform
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from glob import glob
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import lightning.pytorch as L
import torch
from filelock import FileLock, Timeout
from hydra.utils import instantiate
from lightning.pytorch.callbacks import Callback
from omegaconf import DictConfig, OmegaConf
from torch import nn

from ablate.config.composition import Composition, compose
from ablate.config.keys import FILES
from ablate.config.public import public
from ablate.config.saved import counted, read_config, read_yaml
from ablate.config.schema import replace_run_folders
from ablate.data import Data, digest, source
from ablate.errors import LostProcess, RunFailed, UserError, ended_by, unwrap
from ablate.logger import OFF, RunLogger, wandb_node
from ablate.logger.role import Role
from ablate.machine.redact import redact, redacted, without_credentials
from ablate.machine.terminal.say import say
from ablate.machine.version import NAME, PACKAGE, checkout
from ablate.model.layers.stack import kernels
from ablate.run_files import (
    DATA,
    LAST,
    PREDICTIONS,
    RESULT,
    read_mapping,
    unwritable_as_run_failed,
    write_json,
    write_text,
)
from ablate.run_files.checkpoint_io import write_plain
from ablate.run_files.records import read_result
from ablate.run_files.shape import schema_error
from ablate.task import Task
from ablate.training.checkpoint import keep
from ablate.training.curves import Curves
from ablate.training.custom_code import custom_code
from ablate.training.load import load
from ablate.training.logged_extras import AttentionMaps, require_extras
from ablate.training.predictions import write_predictions

PACKAGES = (
    NAME, "torch", "lightning", "hydra-core", "omegaconf", "torchmetrics", "timm", "einops",
    "numpy", "wandb", "tokenizers", "scikit-learn", "torchvision", "gensim", "espeakng-loader",
)  # fmt: skip


def write_config(run_dir: Path, cfg: DictConfig) -> None:
    """Write config.yaml: `recorded_values`."""
    write_text(run_dir / "config.yaml", OmegaConf.to_yaml(OmegaConf.create(recorded_values(cfg))))


def recorded_values(cfg: DictConfig) -> dict[str, Any]:
    """Return the resolved values with which the run can be made again from any folder: with
    absolute paths, and the local copy of a download whose URL is not written down."""
    values = config_values(cfg)
    replace_run_folders(values, lambda _, folder: _absolute(folder))
    for key in FILES:
        location, written = cfg.data.get(key), values["data"].get(key)
        if not location or "${" in written:
            continue
        if location != written:
            values["data"][key] = str(source.fetch(location, cfg.data.get("sha256")))
        else:
            values["data"][key] = _found(written)
    wandb = wandb_node(values["logger"])
    if wandb and (folder := wandb.get("dir")):
        wandb["dir"] = _absolute(folder)
    return values


def _found(path: Any) -> Any:
    """The absolute path of files, or of a pattern of their names, or those of a list or mapping of
    them; any other text as it is."""
    if isinstance(path, dict):
        return {name: _found(each) for name, each in path.items()}
    if isinstance(path, list):
        return [_found(each) for each in path]
    there = Path(path).expanduser()
    return _absolute(path) if there.exists() or glob(str(there), recursive=True) else path


def _absolute(path: str) -> str:
    return path if "${" in path else str(Path(path).expanduser().absolute())


def config_values(cfg: DictConfig) -> dict[str, Any]:
    """Return the resolved values of a config as they may be written down."""
    values: dict[str, Any] = public(lambda: OmegaConf.to_container(cfg, resolve=True))
    return values


def provenance(fingerprint: str, arguments: Sequence[str]) -> dict[str, Any]:
    """Return the machine and the versions of a run. No environment, so no secrets."""
    return {
        **CODE,
        "packages": {name: _version(name) for name in PACKAGES},
        "python": platform.python_version(),
        "platform": platform.platform(),
        "host": platform.node(),
        "cpu_threads": torch.get_num_threads(),
        "gpus": [torch.cuda.get_device_name(n) for n in range(torch.cuda.device_count())],
        "data_fingerprint": fingerprint,
        "arguments": without_credentials(list(arguments)),
    }


def changed_code(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Name the code that differs between two provenances: ablate, torch, modules of custom
    components."""
    shape = {"source": str, "packages": {"torch": str}, "custom_code?": {str: str}}
    if schema_error(before, shape):  # none, or damaged
        return []
    old, new = (
        {
            "ablate": provenance["source"],
            "torch": provenance["packages"]["torch"],
            **provenance.get("custom_code", {}),
        }
        for provenance in (before, now)
    )
    return [name for name in old if old[name] != new.get(name, old[name])]


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def code(package: Path) -> dict[str, Any]:
    """git: commit of the checkout, None outside one. source: hash of the package's Python files (16
    hex digits), which distinguishes uncommitted changes."""
    files = {path for path in package.rglob("*.py") if path.is_file()}  # an editor may leave links
    content = {
        str(file.relative_to(package)): sha256(file.read_bytes()).hexdigest() for file in files
    }
    return {"git": checkout(package), "source": digest(content)}


# Computed at import, since files may change while the run trains.
CODE = code(PACKAGE)


def count_parameters(model: nn.Module) -> dict[str, int]:
    """Count all parameters, the trainable ones, and those outside token and position tables."""
    named = list(model.named_parameters())
    embeddings = getattr(model, "embeddings", ())
    return {
        "total": sum(p.numel() for _, p in named),
        "trainable": sum(p.numel() for _, p in named if p.requires_grad),
        "non_embedding": sum(p.numel() for n, p in named if not n.startswith(tuple(embeddings))),
    }


def reset_peak_memory() -> None:
    """Reset the peak, so that a run of a multirun does not report that of an earlier run."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    with suppress(OSError):  # not Linux: the peak stays that of the whole process
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def peak_memory_bytes() -> int:
    """Return the peak of the GPU allocator if it was used, else of the resident set size."""
    if torch.cuda.is_available() and torch.cuda.max_memory_allocated():
        return torch.cuda.max_memory_allocated()
    import resource  # not on Windows, see ablate.cli.command

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


class Here(Callback):
    """Raise RunFailed soon after the run's folder was moved or removed while it trains: files
    written there later would be lost, or in the way of another run. lock: a file in it."""

    def __init__(self, lock: Path):
        self.lock, self.begun = lock, os.stat(lock)

    def require(self) -> None:
        try:
            if os.path.samestat(os.stat(self.lock), self.begun):
                return
        except FileNotFoundError:
            pass
        raise RunFailed(
            f"{self.lock.parent} was moved or removed while this run trained; the same command"
            " resumes from its checkpoints, if they are put back"
        )

    def on_train_batch_end(self, *args: Any, **kwargs: Any) -> None:
        self.require()

    on_validation_batch_end = on_train_batch_end


@contextmanager
def only_one(run_dir: Path, trainer: L.Trainer) -> Iterator[Here | None]:
    """Take the run lock, so that one process group trains in a folder; the OS releases it when the
    holder dies. The first process gets a callback that verifies that the folder still exists."""
    lock, here = FileLock(run_dir / ".lock"), None
    if trainer.is_global_zero:
        try:
            lock.acquire(timeout=1)  # study/launch/state.py takes the lock briefly to test it
        except Timeout:
            raise UserError(f"{run_dir}: another process is training this run now") from None
        except OSError as error:  # such as a link, which is not followed
            raise UserError(f"{lock.lock_file} cannot be locked ({error.strerror})") from error
        for left_by_a_kill in run_dir.rglob(".*.tmp"):
            left_by_a_kill.unlink(missing_ok=True)
        here = Here(run_dir / ".lock")
        trainer.callbacks.insert(0, here)  # type: ignore[attr-defined]
    try:
        yield here
    finally:
        lock.release()


def first_result(
    composition: Composition, task: Task, flops: int, before: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the content of result.json while a run trains. before: that of an earlier attempt."""
    cfg = composition.cfg
    result: dict[str, Any] = {
        "status": "running",
        "error": None,
        "study": cfg.study.name,
        "arm": cfg.study.arm,
        "seed": cfg.seed,
        "run_id": composition.id,
        "metric": {"name": task.metric, "value": None, "mode": task.mode},
        "metrics": {},
        "parameters": count_parameters(task.model),
        "flops_per_step": flops,
        "kernels": kernels(task.model),
        "choices": OmegaConf.to_container(cfg.choices),
    }
    if logged := before.get("logged_steps"):
        result["logged_steps"] = logged
    if task.model.started_from is not None:
        result["started_from"] = redacted(task.model.started_from)
    return result


def write_inputs(composition: Composition, run_dir: Path, data: Data) -> None:
    """Write config.yaml, data.pt and provenance.json; print if code changed before a resume."""
    write_config(run_dir, composition.recorded)
    if (state := data.run_state()) is not None:
        write_plain(run_dir / DATA, state)
    now = {
        **provenance(composition.fingerprint, composition.arguments),
        "config": counted(read_yaml(run_dir / "config.yaml")),
        "custom_code": custom_code(composition.cfg),
    }
    changed = changed_code(read_mapping(run_dir / "provenance.json"), now)
    if changed and (run_dir / "checkpoints" / LAST).exists() and not composition.debugged:
        say(f"code changed since the last attempt ({', '.join(changed)}); resuming")
    write_json(run_dir / "provenance.json", now)


@contextmanager
def recorded(
    composition: Composition,
    run_dir: Path,
    task: Task,
    trainer: L.Trainer,
    flops: int,
    curves: Curves,
    here: Here | None,
    began: float,
) -> Iterator[tuple[dict[str, Any], RunLogger | None]]:
    """Write config.yaml, provenance.json and result.json, also after errors; close the logger.

    here: of `only_one`. began: when, by time.perf_counter, the run began to read its data, or its
    process to exist.
    """
    (run_dir / "checkpoints").mkdir(parents=True, exist_ok=True)
    cfg = composition.cfg
    result_before = {} if composition.debugged else read_result(run_dir)[0]
    wall_before = result_before.get("wall_seconds", 0.0)
    reset_peak_memory()
    result = first_result(composition, task, flops, result_before)
    logger: RunLogger | None = None

    def end() -> None:
        # A resumed run adds the time of the interrupted one. A killed process recorded none: it
        # took at least the training time up to its last checkpoint.
        before = max(wall_before, curves.resumed_seconds)
        result["wall_seconds"] = before + time.perf_counter() - began
        result["peak_memory_bytes"] = peak_memory_bytes()
        if trainer.is_global_zero:
            result["logged_to"] = None  # until all has arrived
            if here:  # else it may be the folder of another process
                here.require()
            write_json(run_dir / "result.json", result)
            if logger:
                close(logger, run_dir, result, curves.rows)

    if trainer.is_global_zero:
        write_inputs(composition, run_dir, task.data)
        write_json(run_dir / "result.json", result)
    try:
        if trainer.is_global_zero and (made := start_logger(cfg, run_dir, result)):
            require_extras(made, task, trainer)
            curves.logger, curves.reached, logger = made, result.get("logged_steps", {}), made
            trainer.loggers = list(logger.loggers)
            if logger.log_maps:
                # Before `Compiled`, which compiles again after a validation.
                trainer.callbacks.insert(0, AttentionMaps(logger))  # type: ignore[attr-defined]
        with unwritable_as_run_failed():
            yield result, logger
        result["status"] = "finished"
    except BaseException as error:
        status = "rejected" if isinstance(error, UserError) else "failed"
        ended = ended_by(error) if isinstance(error, SystemExit) else None
        message = redact(ended or str(unwrap(error) or error))
        result |= {"status": status, "error": message or type(error).__name__}
        # A second error, of the same disk or folder, would hide the first.
        with suppress(OSError, RunFailed):
            end()
            if isinstance(unwrap(error), LostProcess) and not trainer.is_global_zero:
                record_failure(run_dir, result, message)
        raise
    end()
    if trainer.is_global_zero and not composition.debugged:
        keep(run_dir, cfg.checkpoint_keep)


def record_failure(run_dir: Path, result: dict[str, Any], message: str) -> None:
    """Write how a run failed for a first process that cannot do so itself; nothing, if it, or
    another command by now, has the run."""
    with suppress(OSError), FileLock(run_dir / ".lock", timeout=3):
        write_json(run_dir / RESULT, {**result, "status": "failed", "error": message})


def close(
    logger: RunLogger, run_dir: Path, result: dict[str, Any], rows: Sequence[Mapping[str, float]]
) -> None:
    """Close the logger; if the whole run was logged, write its address to result.json."""
    where = logger.where
    logger.finish(result, sorted((run_dir / "figures").glob("*.png")))
    last = int(rows[-1]["step"]) if rows else -1
    result["logged_steps"] = result.get("logged_steps", {}) | logger.reached(last)
    result["logged_to"] = None if logger.lost else where
    write_json(run_dir / RESULT, result)


def log_finished(cfg: DictConfig, run_dir: Path, result: dict[str, Any]) -> None:
    """Log a finished run that was not logged; again in a W&B sweep, whose agent expects it."""
    sweep = bool(os.environ.get("WANDB_SWEEP_ID"))
    if result.get("logged_to") not in (None, OFF) and not sweep:
        return
    if (logger := start_logger(cfg, run_dir, result)) is None:
        return
    if logger.log_maps:
        say("logger.log_maps=true: only during training; the final figures are logged")
    if logger.log_predictions and not (run_dir / PREDICTIONS).exists():
        write_predictions(load(run_dir, allow=[*custom_code(config_values(cfg))]))
    with (run_dir / "metrics.csv").open(newline="") as file:
        rows = [{k: float(v) for k, v in row.items() if v} for row in csv.DictReader(file)]
    logger.catch_up(rows, {} if sweep else result.get("logged_steps", {}))
    write_config(run_dir, cfg)
    close(logger, run_dir, result, rows)
    if (where := result["logged_to"]) == OFF:
        say(f"not logged: {OFF}")
    elif where is not None:
        say(f"logged the finished run: {where}")


def _commit(run_dir: Path) -> str | None:
    """That of the checkout which trains, or trained, a run; None outside a checkout."""
    made = read_mapping(run_dir / "provenance.json")
    if schema_error(made, {"git": {"commit": str, "dirty": bool}}):
        return None
    git = made["git"]
    return f"{git['commit']}-dirty" if git["dirty"] else git["commit"]


def send_run(run_dir: Path) -> None:
    """Send a finished run to W&B, with the keys of conf/logger/wandb.yaml. UserError unless it is
    finished; one that was logged is not sent again."""
    result, wrong = read_result(run_dir)
    if wrong or result.get("status") != "finished":
        raise UserError(f"{run_dir} is not finished; {wrong or 'the same command resumes it'}")
    cfg = read_config(run_dir / "config.yaml")
    if not wandb_node(cfg.logger):
        result["logged_to"] = None  # by another logger
    if result.get("logged_to") not in (None, OFF):
        say(f"{run_dir} was logged: {result['logged_to']}")
        return
    cfg.logger = OmegaConf.to_container(compose("logger=wandb").logger, resolve=True)
    log_finished(cfg, run_dir, result)


def start_logger(cfg: DictConfig, run_dir: Path, result: dict[str, Any]) -> RunLogger | None:
    """Return the logger of the run, or None for logger=none."""
    if not cfg.logger:
        return None
    config = config_values(cfg)
    config["parameters"] = result["parameters"]
    role = Role.of(run_dir, cfg.study.name, cfg.study.arm)
    config["ablate"] = role.block(
        seed=cfg.seed,
        parameters=result["parameters"]["total"],
        flops=result["flops_per_step"],
        commit=_commit(run_dir),
    )
    # Not by keyword to `instantiate`, since its own first parameter is called config.
    open_logger = instantiate(cfg.logger, _partial_=True, _recursive_=False, _convert_="all")
    logger: RunLogger = open_logger(
        run_dir=run_dir, run_id=result["run_id"], role=role, config=config
    )
    return logger
