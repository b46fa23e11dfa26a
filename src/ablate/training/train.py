"""One run: build, fit, measure, record."""

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning.pytorch as L
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities import rank_zero_only as on_first_process
from omegaconf import DictConfig
from torch.nn.modules.batchnorm import _BatchNorm

from ablate.config.check import refuse_study
from ablate.config.composition import Composition, require_composed
from ablate.config.keys import resolved, to_dict
from ablate.config.make import make
from ablate.config.saved import names_file, read_yaml
from ablate.data import Data
from ablate.data.split import SPOKEN
from ablate.errors import UserError
from ablate.figures.curves import draw_curves
from ablate.logger import RunLogger, refuse_secrets
from ablate.machine.peak import peak_flops
from ablate.machine.processes import watching
from ablate.machine.redact import redacted
from ablate.machine.stop import StopOfRun, stopping
from ablate.machine.terminal.say import Formatter, printable, say
from ablate.model.base import Model
from ablate.model.layers.stack import kernels
from ablate.run_files import (
    RESULT,
    best_weights,
    refuse_links,
    unwritable_as_run_failed,
    write_json,
)
from ablate.run_files.created import created
from ablate.run_files.records import FINISHED, WEIGHTS_MISSING, read_result
from ablate.run_files.shape import schema_error
from ablate.task import Task
from ablate.task.attention import attention_figures
from ablate.task.experts import expert_figures
from ablate.task.measures import names_of_measures, require_metric
from ablate.training.average import Average, averages
from ablate.training.build import (
    build_data,
    count_cache,
    count_flops,
    initialized,
    make_task,
    model_on_meta,
    require_memory,
)
from ablate.training.callbacks import EarlyStopping, own_callbacks
from ablate.training.checkpoint import Checkpoints, keep, resumable
from ablate.training.compile import Compiled, refusing
from ablate.training.curves import Curves
from ablate.training.custom_code import custom_code, say_edited
from ablate.training.leakage import CACHE, caution, decodes_otherwise
from ablate.training.load import Run, load, load_weights, require_fitting
from ablate.training.measure import conditions, full_pass, measure_under
from ablate.training.no_effect import refuse_without_effect
from ablate.training.parallel import Sharing, require_one_model
from ablate.training.planned import other_run, planned_id, require_unedited
from ablate.training.predictions import write_predictions
from ablate.training.preflight import check_machine, check_output, many_tokens
from ablate.training.progress import ProgressFile
from ablate.training.record import (
    log_finished,
    only_one,
    record_failure,
    recorded,
)
from ablate.training.same_model import try_out
from ablate.training.start_state import StartState
from ablate.training.steps import Accumulation, RandomStreams
from ablate.training.trainer import check_warmup, length_of_training, make_trainer, started_by
from ablate.training.transfer import StartingRun, describe_transfer
from ablate.training.trunk import Branches, SharedSteps, beginning


def run(cfg: DictConfig, run_dir: Path | None = None) -> dict[str, Any]:
    """Check and train a composed config; return the content of result.json, and `folder`."""
    require_composed(cfg, "run")
    composition = Composition(cfg)
    refuse_study(composition.cfg)
    with folder_of(composition, run_dir) as folder:
        result = train(composition, folder)
    return {**result, "folder": str(run_dir or composition.folder)}


@contextmanager
def folder_of(composition: Composition, run_dir: Path | None = None) -> Iterator[Path]:
    """The folder of a run, with its log. It is removed if the block rejects the run and it was
    created here. Raises UserError."""
    check_machine(composition.cfg)  # before the data are read, which the folder's name needs
    folder = (run_dir or composition.folder).absolute()
    refuse_links(folder)
    outputs = composition.cfg.output_dir
    if not folder.resolve().is_relative_to(Path(outputs).resolve()):
        on_first_process(say)(f"output in {folder.resolve()}, outside output_dir={outputs}")
    file = logging.FileHandler(folder / "train.log", delay=True)  # created at the first message
    file.setFormatter(Formatter("[%(asctime)s][%(name)s][%(levelname)s] - %(message)s"))
    with created(folder):
        check_output(folder)
        logging.root.addHandler(file)
        try:
            yield folder
        finally:
            logging.root.removeHandler(file)
            with unwritable_as_run_failed():  # its last lines
                file.close()


def train(
    composition: Composition,
    run_dir: Path,
    began: float | None = None,
    shared: SharedSteps | None = None,
) -> dict[str, Any]:
    """Train a composition in a folder, resuming an earlier attempt.

    Returns the content of result.json. A finished run is not trained again. began: when, by
    time.perf_counter, the run began, if before this call: its `wall_seconds` are counted from then.
    shared: the steps that it shares with other runs of its study.
    Raises UserError (nothing was started), RunFailed or Interrupted (see result.json).
    """
    began = time.perf_counter() if began is None else began
    refuse_secrets(composition.cfg)
    if (done := finished(composition, run_dir)) is not None:
        done = measured_as_well(composition, run_dir, done)
        on_first_process(keep)(run_dir, composition.cfg.get("checkpoint_keep", "all"))
        return done
    with stopping(StopOfRun()) as stop, open_run(composition, run_dir, stop, began) as run:
        with together(run):
            if shared and shared.branches:
                branches = Branches(run.checkpoints, shared.branches)
                run.trainer.callbacks.append(branches)  # type: ignore[attr-defined]
            resume = not composition.debugged
            fit(run.trainer, run.task, run.data, run.checkpoints, resume=resume, shared=shared)
            measured = measure(run.trainer, run.task, run.data, run.curves, run.checkpoints)
        conclude(run, measured)
    return run.result


def finished(composition: Composition, run_dir: Path) -> dict[str, Any] | None:
    """Return result.json if the run is finished; UserError if the folder contains another run."""
    done, wrong = read_result(run_dir)
    if not wrong and done.get("status") == "finished" and (lacks := schema_error(done, FINISHED)):
        wrong = f"{run_dir / RESULT} cannot be used: {lacks}"
    if wrong:
        on_first_process(say)(f"{wrong}; it is written again")
        done = {}
    # A launcher may have recorded the crash of a run that had not written its id.
    known, planned = done.get("run_id"), planned_id(composition, run_dir)
    begun: list[str] = []
    if {known, planned} - {None, wanted := composition.id}:
        if (path := run_dir / "config.yaml").is_file():
            with names_file(path):
                begun = composition.with_recorded_processes(to_dict(read_yaml(path)))
        if planned not in (None, composition.id):
            raise other_run(composition, run_dir)
        if known not in (None, composition.id):
            _ = composition.fingerprint  # unreadable data raise another error
            instead = "remove it" if planned else "choose another folder, or none"
            raise UserError(
                f"run_dir={run_dir} already contains run {known}, which differs from this run"
                f" ({wanted}); {instead}"
            )
    if done.get("status") != "finished" or composition.debugged:
        require_unedited(composition, run_dir)
        if begun:
            on_first_process(say)(
                f"{run_dir} was begun with {' '.join(begun)}; other processes resume it, which"
                " changes nothing but rounding"
            )
        return None
    lost = not best_weights(run_dir).exists()
    more = f", but {WEIGHTS_MISSING}" if lost else "; another seed= is another run"
    on_first_process(say)(f"{run_dir} is finished, so nothing was trained{more}")
    on_first_process(say_edited)(run_dir, composition.cfg)
    return done


def measured_as_well(
    composition: Composition, run_dir: Path, done: dict[str, Any]
) -> dict[str, Any]:
    """Measure a finished run under the conditions of `evaluate` that it lacks, and log it if it was
    not logged."""
    known = done.get("evaluated", {})
    wanted = conditions(composition.cfg).items()
    lacking = {name: changes for name, changes in wanted if known.get(name) != redacted(changes)}
    if lacking:
        run = load(run_dir, allow=[*custom_code(composition.cfg)])
        measure_under(done, run.task, run.data, run.config, lacking, run_dir)
        on_first_process(write_json)(run_dir / RESULT, done)
    on_first_process(log_finished)(composition.recorded, run_dir, done)
    return done


@dataclass(frozen=True)
class RunContext:
    """A run before its first step; `result` becomes the content of result.json."""

    composition: Composition
    run_dir: Path
    data: Data
    trainer: L.Trainer
    task: Task
    curves: Curves
    checkpoints: Checkpoints
    result: dict[str, Any]
    logger: RunLogger | None


@contextmanager
def open_run(
    composition: Composition, run_dir: Path, stop: StopOfRun, began: float
) -> Iterator[RunContext]:
    """Build everything, take the run lock, and write config.yaml and result.json; record how the
    block ends."""
    cfg = composition.cfg
    conditions(cfg)  # rejected before anything is read
    data = build_data(cfg, composition.data)
    counted = model_on_meta(cfg, data)
    require_memory(cfg, counted)
    model = initialized(cfg, data)
    if not (run_dir / "checkpoints").exists():  # else it was checked when it began
        refuse_without_effect(composition, data, counted)
    if model.started_from is not None:
        on_first_process(say)(describe_transfer(model.started_from))
    trainer, task, curves, checkpoints = prepare(cfg, run_dir, data, model)
    checkpoints.stop = stop
    if composition.recorded is not cfg:
        require_any_processes(task)
    if trainer.world_size > 1 and conditions(cfg):
        raise UserError(
            "evaluate: not supported with several processes; leave it out, and use"
            " python -m ablate.evaluate RUN_DIR KEY=VALUE, or python -m ablate.lm_eval RUN_DIR"
            " --tasks TASK, afterwards"
        )
    cache, flops = count_cache(task, counted), count_flops(cfg, task, counted)
    del counted
    custom = bool(custom_code(composition.cfg))
    warning = caution(task, computed=custom)
    cached = CACHE if custom and not warning and decodes_otherwise(task) else None
    for line in (many_tokens(composition), warning, cached):
        if line:
            on_first_process(say)(line)
    with (
        unwritable_as_run_failed(),  # also of files before and after training
        only_one(run_dir, trainer) as here,
        recorded(composition, run_dir, task, trainer, flops, curves, here, began) as (
            result,
            logger,
        ),
    ):
        checkpoints.run_id = result["run_id"]
        if cache is not None:
            result["cache_bytes"] = cache._asdict()
        if warning:
            result["caution"] = warning
        line = headline(cfg.choices, run_dir, data, trainer, result["parameters"]["total"])
        on_first_process(print)(printable(line), flush=True)
        if trainer.num_nodes > 1 and trainer.local_rank == 0:
            cluster = trainer.strategy.cluster_environment  # type: ignore[attr-defined]
            say(
                f"machine {trainer.node_rank} of {trainer.num_nodes} (counted from 0) waits for the"
                f" others at {cluster.main_address}:{cluster.main_port}"
            )
        try:
            yield RunContext(
                composition, run_dir, data, trainer, task, curves, checkpoints, result, logger
            )
        finally:
            stop.moment = None  # the final writes end by themselves


def require_any_processes(task: Task) -> None:
    """Raise UserError for a run whose results depend on the number of processes."""
    for part in task.modules():
        reason = getattr(part, "of_process", None)
        if isinstance(part, _BatchNorm):
            reason = "batch norm takes the statistics"
        if reason is not None:
            raise UserError(
                f"{reason} of one process's share of a batch, so the run can only be resumed with"
                " the same number of processes"
            )


def conclude(run: RunContext, measured: Mapping[str, Any]) -> None:
    """Complete the result, also by the conditions of `evaluate`, and write the figures. measured:
    the metrics of the best weights."""
    run.result.update(measured)
    flops = run.result["flops_per_step"] * run.result["steps"]
    run.result["throughput"] |= utilization(run.trainer, flops, run.result["train_seconds"])
    for callback in run.trainer.callbacks:  # type: ignore[attr-defined]
        run.result.update(getattr(callback, "notes", dict)())  # of debug=overfit
    cfg = run.composition.cfg
    if wanted := conditions(cfg):
        measure_under(run.result, run.task.eval(), run.data, cfg, wanted, run.run_dir)
    measured_run = Run(run.run_dir, cfg, run.result, run.data, run.task)
    run.checkpoints.stop.enter("while its figures were plotted")
    run.result["artifacts"] = show(run.task, run.run_dir, run.trainer, measured_run.title)
    if run.logger and run.logger.log_predictions:
        write_predictions(measured_run)


def together(run: RunContext) -> AbstractContextManager[None]:
    """Several processes work within the block: none waits for one that has ended."""
    if run.trainer.world_size == 1:
        return nullcontext()

    def fail(line: str) -> None:
        if run.trainer.is_global_zero:
            write_json(run.run_dir / RESULT, {**run.result, "status": "failed", "error": line})
        else:
            record_failure(run.run_dir, run.result, line)

    return watching(lambda: started_by(run.trainer), fail)


def headline(
    choices: Mapping[str, str], run_dir: Path, data: Data, trainer: L.Trainer, parameters: int
) -> str:
    """The model, data and device of the training, in one line."""
    device, processes = trainer.strategy.root_device, trainer.world_size
    if device.type == "cuda":
        device_name = torch.cuda.get_device_name(device)
    elif device.type == "cpu":
        threads = torch.get_num_threads()
        device_name = f"cpu, {threads} thread{'s' if threads > 1 else ''}"
    else:
        device_name = device.type
    here = Path.cwd()
    folder = run_dir.relative_to(here) if run_dir.is_relative_to(here) else run_dir
    return " | ".join(
        [
            f"{choices['model']}: {parameters:,} parameters",
            f"{choices['data']}: {data.amount()}",
            f"{processes} x {device_name}" if processes > 1 else device_name,
            str(folder),
        ]
    )


def prepare(
    cfg: DictConfig, run_dir: Path, data: Data, model: Model
) -> tuple[L.Trainer, Task, Curves, Checkpoints]:
    """Make the Trainer of a run, its task and its callbacks.

    Training is one pass over a stream of batches that repeats the data as often as needed, so steps
    are the only clock: max_epochs and validation by epoch are converted to steps.
    """
    task = make_task(cfg, data, model)
    if cfg.trainer.precision == "64-true":
        task.double()  # Lightning does so only after it restored a checkpoint, and would round it
    checkpoints = Checkpoints(run_dir / "checkpoints", every=cfg.checkpoint_every, model=model)
    if averages(task):
        checkpoints.average = Average(task)
    # They run first, so that nothing is logged or saved of a loss that is not finite.
    first = [checkpoints.losses, *([checkpoints.average] if checkpoints.average else [])]
    curves = Curves(run_dir / "metrics.csv")
    compiled = [Compiled()] if cfg.compile else []
    debug = [make(cfg.debug)] if "debug" in cfg else []
    # Before Checkpoints, so that a checkpoint includes their state.
    own = own_callbacks(cfg.get("callbacks"), logged=bool(cfg.logger))
    start = [StartState(StartingRun.of(cfg).state, task)] if cfg.init_optimizer else []
    last = [*compiled, *debug, RandomStreams(), Accumulation()]
    callbacks = [*first, curves, *own, *start, checkpoints, ProgressFile(run_dir), *last]
    trainer = make_trainer(cfg.trainer, cfg.schedule, run_dir, data, callbacks)
    task.trainer = trainer
    require_measured(task, own)
    if isinstance(trainer.strategy, Sharing):  # refused before there are processes
        require_one_model(task)
    return trainer, task, curves, checkpoints


def require_measured(task: Task, callbacks: Sequence[Callback]) -> None:
    """Raise UserError unless the task measures its metric, and the metrics that `callbacks` watch.
    Needs a trainer that is not fitting."""
    require_metric(task)
    # A custom task or callback may log more.
    every = (task, *callbacks)
    if all(type(each).__module__.startswith(("ablate.", "lightning.")) for each in every):
        for callback in callbacks:
            if isinstance(callback, EarlyStopping):
                callback.require_monitor(names_of_measures(task, "val"))


def require_runnable(cfg: DictConfig, task: Task) -> None:
    """Raise the errors of a run before its first step, except those that depend on its machine and
    its folder. task: that of the composition, with a model on the meta device."""
    conditions(cfg)
    own = own_callbacks(cfg.get("callbacks"), logged=bool(cfg.logger))
    if own or not type(task).__module__.startswith("ablate."):
        task.trainer = L.Trainer(accelerator="cpu", devices=1, logger=False, barebones=True)
        require_measured(task, own)
    values = resolved(cfg)
    if cfg.schedule.get("warmup") != "auto":  # which is only reported
        check_warmup(cfg.schedule, length_of_training(values["trainer"], task.data)[0])
    if custom_code(values):
        try_out(cfg, task)


def fit(
    trainer: L.Trainer,
    task: Task,
    data: Data,
    checkpoints: Checkpoints,
    *,
    resume: bool = True,
    shared: SharedSteps | None = None,
) -> None:
    """Train; with `resume`, start from the last readable checkpoint, if there is one, else from the
    state of a longer run, if `shared` has one."""
    folder, run_id = checkpoints.folder, checkpoints.run_id
    checkpoint, state, problems = resumable(folder, run_id) if resume else (None, {}, [])
    for line in problems:
        on_first_process(say)(line)
    if checkpoint:
        on_first_process(say)(f"resuming from {checkpoint} at step {state['global_step']:,}")
    elif resume and shared and shared.trunk:
        checkpoint, state = beginning(shared, checkpoints, first=trainer.is_global_zero)
    if checkpoint:
        require_fitting(task, state["state_dict"], checkpoint)
        state.clear()  # Lightning reads it again
    compiles = any(isinstance(callback, Compiled) for callback in trainer.callbacks)  # type: ignore[attr-defined]
    with refusing() if compiles else nullcontext():
        trainer.fit(task, datamodule=data, ckpt_path=checkpoint)
    if isinstance(trainer.strategy, Sharing):
        task.model = trainer.strategy.joined(task.model)
    checkpoints.leave_training(trainer)
    if (steps := trainer.global_step) < trainer.max_steps:
        on_first_process(say)(
            f"a callback ended the training after step {steps:,} of {trainer.max_steps:,}"
        )


def measure(
    trainer: L.Trainer, task: Task, data: Data, curves: Curves, checkpoints: Checkpoints
) -> dict[str, Any]:
    """Validate and test the best weights; return the metrics and the cost of training."""
    steps = trainer.global_step
    if checkpoints.validated_step != steps:  # the last weights may be the best
        on_first_process(say)("validating the last weights")
        trainer.validate(task, datamodule=data, verbose=False)
    weights = best_weights(run_dir := checkpoints.folder.parent)
    if not weights.exists():  # of a run that was resumed without them
        raise UserError(f"{run_dir}: {WEIGHTS_MISSING}")
    load_weights(task, weights, checkpoints.run_id)
    if checkpoints.average is not None:  # these weights are its own
        trainer.callbacks.remove(checkpoints.average)  # type: ignore[attr-defined]
    chosen = chosen_on(data, checkpoints.best)
    splits = ["val", "test"] if data.has_test else ["val"]
    counts = [f"{data.length(split):,} {SPOKEN[split]} examples" for split in splits]
    on_first_process(say)(
        f"evaluating the weights of step {checkpoints.best_step:,} on {' and '.join(counts)}"
    )
    metrics = full_pass(trainer, task, data)
    epochs = data.epochs(steps * trainer.accumulate_grad_batches)
    return {
        **chosen,
        "metric": {"name": task.metric, "value": metrics[task.metric], "mode": task.mode},
        "metrics": metrics,
        "steps": steps,
        "best_step": checkpoints.best_step,
        "kernels": kernels(task.model),
        **task.presenter(task).notes(),
        **({"epochs": epochs} if epochs else {}),
        **({"trunk": checkpoints.trunk} if checkpoints.trunk else {}),
        "train_seconds": curves.train_seconds,
        "throughput": {
            "unit": f"{task.unit}/s",
            "value": int(curves.units) / curves.train_seconds,
            "waiting": curves.data_seconds / curves.train_seconds,
        },
    }


def utilization(trainer: L.Trainer, flops: int, seconds: float) -> dict[str, float]:
    """The model FLOPs utilization of a training: `flops` of all its steps in `seconds`, by the
    published peak of its GPUs. Empty if that is unknown, and for products in another precision.

    Chowdhery et al. 2022, appendix B, https://arxiv.org/abs/2204.02311.
    """
    device = trainer.strategy.root_device
    if device.type != "cuda" or not trainer.precision.startswith(("bf16", "16")):
        return {}
    peak = peak_flops(torch.cuda.get_device_name(device))
    return {} if peak is None else {"mfu": flops / (seconds * peak * trainer.world_size)}


def chosen_on(data: Data, best: float | None) -> dict[str, Any]:
    """For result.json: how many validation examples chose the best weights, if not all did."""
    some, every = data.val_examples, data.length("val")
    if some is None or some >= every:
        return {}
    return {"chosen_on": {"examples": some, "of": every, "value": best}}


def show(task: Task, run_dir: Path, trainer: L.Trainer, title: str) -> list[str]:
    """Write attention maps of fixed validation examples, curves, and the artifacts of the task,
    whose places in the folder are returned."""
    if not trainer.is_global_zero:
        return []

    say("plotting figures")
    task, folder = task.to("cpu", torch.float32).eval(), run_dir / "figures"
    attention_figures(task, folder, run=title)
    expert_figures(task, folder)
    draw_curves(run_dir / "metrics.csv", folder / "curves.png", unit=task.presenter.loss_unit)
    return [str(path.relative_to(run_dir)) for path in task.presenter(task).artifacts(run_dir)]
