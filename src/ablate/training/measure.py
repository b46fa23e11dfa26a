"""Measure a trained model: a full pass over its data, and over other data or lengths."""

import re
import sys
from pathlib import Path
from typing import Any

import lightning.pytorch as L
from lightning.pytorch.utilities import rank_zero_only as on_first_process
from omegaconf import DictConfig, OmegaConf

import ablate.training.quiet  # noqa: F401
from ablate.config.keys import FILES, to_dict
from ablate.config.make import make_data
from ablate.config.parts import locate
from ablate.config.rules import refusal
from ablate.config.schema import ruled
from ablate.data import Data
from ablate.errors import UserError, suggest
from ablate.machine.redact import redacted
from ablate.machine.terminal.say import say
from ablate.machine.version import install
from ablate.model.base import LanguageModel
from ablate.pos_enc import spread_positions
from ablate.task import Task
from ablate.training.build import make_task, model_on_meta
from ablate.training.load import model_of
from ablate.training.progress import ProgressBar, progress
from ablate.training.same_model import same_function
from ablate.training.trainer import precision_of


def full_pass(trainer: L.Trainer, task: Task, data: Data) -> dict[str, float]:
    """Compute every metric on the validation split, and on the test split if there is one."""
    data.val_examples = None
    trainer.loggers = []  # a result, not a further point of the curves
    measured = dict(trainer.validate(task, datamodule=data, verbose=False)[0])
    if data.has_test:
        measured |= trainer.test(task, datamodule=data, verbose=False)[0]
    return {name: float(value) for name, value in sorted(measured.items())}


def measured_with(
    trained: Task, read: Data, config: DictConfig, changes: dict[str, Any]
) -> dict[str, float]:
    """Validation and test of a task's weights with some keys of its data or search changed.

    trained, read: the task and data of the run; config: its composition.
    """
    encoding: Any = locate(config.pos_enc._target_)
    config = changed(config, changes, trained.presenter.search_keys, encoding.measured_with)
    data, model = read, trained.model
    randomized = bool(config.pos_enc.get("randomize"))
    if randomized or any(key.startswith("pos_enc.") for key in changes):
        model = model_of(config, data)
        model.load_state_dict(trained.model.state_dict())
    if any(key.startswith("data.") for key in changes):
        data = make_data(config)
        data.measure_as(read)
        if not any(f"data.{key}" in changes for key in FILES):
            read.require_unchanged()
        else:
            data.whole = read.trained_on not in (None, data.fingerprint())
        data.setup()
        if data.whole:
            parts = " and ".join(
                f"{data.measured_amount(s)} of {s}" for s in data.splits if s != "train"
            )
            say(f"{data.where}: measured on {parts}", file=sys.stderr)
    words = " ".join(f"{key}={value}" for key, value in changes.items())
    sizes = data.sizes.arguments()
    for name, size in read.sizes.arguments().items():
        if not name.endswith("length") and sizes[name] != size:
            raise UserError(
                f"{words}: the model was trained for {name}={size}, this data has {sizes[name]}"
            )
    classes, those = (list(each.class_names) for each in (read, data))
    if classes != those:
        raise UserError(
            f"{words}: the model was trained for the classes {', '.join(classes[:5])}, this data"
            f" has {', '.join(those[:5])}"
        )
    if randomized:
        spread_positions(model, model_on_meta(config, data))
    task = make_task(config, data, model)
    task.load_state_dict(trained.state_dict())  # also the copies of the model
    shown = progress(sys.stderr)  # results go to the output
    trainer = L.Trainer(
        callbacks=[shown],
        accelerator="auto",
        **precision_of(config.trainer.precision, "auto"),
        devices=1,
        logger=False,
        enable_progress_bar=isinstance(shown, ProgressBar),
        enable_model_summary=False,
        use_distributed_sampler=False,
    )
    return full_pass(trainer, task, data)


def require_effect(trained: Task, data: Data, config: DictConfig, changes: dict[str, Any]) -> None:
    """Raise UserError for changes of only the positions that the run's model does not read, such
    as a factor without a scaling; not if one of them repeats the value of the run. Numbers are
    tried twice, as one may be that of no change."""
    positions = {key: value for key, value in changes.items() if key.startswith("pos_enc.")}
    if not positions or any(OmegaConf.select(config, k) == v for k, v in positions.items()):
        return
    encoding: Any = locate(config.pos_enc._target_)
    others = {k: 2 * v + 1 if type(v) in (int, float) else v for k, v in positions.items()}
    tried = (changed(config, keys, (), encoding.measured_with) for keys in ({}, positions, others))
    if same_function(trained, data, (model_of(each, data) for each in tried)):
        words = " ".join(f"{key}={value}" for key, value in positions.items())
        raise UserError(f"{words} has no effect on this model; leave it out")


def conditions(config: DictConfig) -> dict[str, dict[str, Any]]:
    """The key `evaluate` of a config: names of conditions, and the changes of each. UserError for a
    key that cannot be changed."""
    wanted: dict[str, Any] = dict(to_dict(config.get("evaluate") or {}))
    for name, changes in wanted.items():
        if harness_tasks(changes):
            _require_harness(name, changes, config)
            continue
        if not isinstance(changes, dict) or not changes or not re.fullmatch(r"[\w.-]+", name):
            raise UserError(
                f"evaluate.{name}: must be a name of letters and digits and a mapping, such as"
                " evaluate={long: {data.seq_len: 256}}, or lm_eval:TASK,TASK"
            )
        task, encoding = locate(config.task._target_), config.get("pos_enc")
        with_keys = () if encoding is None else locate(encoding._target_).measured_with
        changed(config, changes, task.presenter.search_keys, with_keys)
    return wanted


def harness_tasks(changes: Any) -> list[str]:
    """The tasks of a condition lm_eval:TASK,TASK; none of another."""
    of, _, names = changes.partition("lm_eval:") if isinstance(changes, str) else ("", "", "")
    return [] if of else [name.strip() for name in names.split(",") if name.strip()]


def _require_harness(name: str, changes: str, config: DictConfig) -> None:
    """Raise UserError for tasks that cannot be measured."""
    if name in ("val", "test", "train") or not re.fullmatch(r"[\w.-]+", name):
        raise UserError(f"evaluate.{name}: use another name, such as core")
    try:
        from ablate.training.harness import metrics_of
    except ImportError as error:
        raise UserError(f"evaluate.{name}: {error}: {install('lm-eval')}") from None
    if not issubclass(locate(config.model._target_), LanguageModel):
        raise UserError(f"evaluate.{name}: lm-evaluation-harness needs a language model of text")
    try:
        metrics_of((*harness_tasks(changes),))
    except UserError as error:
        raise UserError(f"evaluate.{name}: {error}") from None


def measure_under(
    result: dict[str, Any],
    task: Task,
    data: Data,
    config: DictConfig,
    wanted: dict[str, dict[str, Any]],
    folder: Path,
) -> None:
    """Add the metrics of a run under each condition to its result, NAME of val/loss@NAME or
    NAME/TASK/acc; a condition that the model rejects, such as a text longer than its positions, is
    reported and recorded with them. folder: of the run."""
    done, refused = result.setdefault("evaluated", {}), {}
    for name, changes in wanted.items():
        names = harness_tasks(changes)
        try:
            if not names:
                require_effect(task, data, config, changes)
        except UserError as error:  # only reported: in a study another arm may read the key
            on_first_process(say)(f"evaluate.{name}: {error}")
        ours, before = f"@{name}", done.pop(name, None)
        tested = f"{name}/" if names or harness_tasks(before) else ours
        result["metrics"] = {
            k: v
            for k, v in result["metrics"].items()
            if not k.endswith(ours) and not k.startswith(tested)
        }
        try:
            if names:
                from ablate.training.harness import measured_on

                measured = measured_on(task, names, name, folder)
            else:
                measured = {
                    f"{metric}{ours}": value
                    for metric, value in measured_with(task, data, config, changes).items()
                }
        except UserError as error:
            on_first_process(say)(f"evaluate.{name}: {error}")
            refused[name] = str(error)
            continue
        result["metrics"] |= measured
        done[name] = redacted(changes)
    kept = {k: why for k, why in result.pop("not_evaluated", {}).items() if k not in wanted}
    if refused | kept:
        result["not_evaluated"] = refused | kept


def changed(
    config: DictConfig,
    changes: dict[str, Any],
    search: tuple[str, ...] = (),
    encoding: tuple[str, ...] = (),
) -> DictConfig:
    """The run's config with the changes; UserError for a key that is neither a condition of its
    data, nor in `search` (of its task), nor in `encoding` (of its positions)."""
    config = config.copy()
    OmegaConf.set_readonly(config, False)  # that of a command is read-only
    kind: Any = locate(config.data._target_)
    reasons = dict.fromkeys(kind.for_training, "changes nothing that is measured")
    reasons |= dict.fromkeys(kind.dividing, "would measure examples that the run was trained on")
    settled = {f"data.{key}": why for key, why in reasons.items() if key in config.data}
    known = [f"data.{key}" for key in config.data if key not in ("_target_", *reasons)]
    known += [f"task.{key}" for key in search] + [f"pos_enc.{key}" for key in encoding]
    rules = {key: rule for key, _, rule in ruled(config)}
    for key, value in changes.items():
        if key not in known:
            why = f"{settled[key]}; " if key in settled else ""
            near = "" if why else suggest(key, known)
            raise UserError(
                f"{key}={value}: {why}a finished run can be measured with other"
                f" {', '.join(known)}{near}"
            )
        rule = rules.get(key)
        if rule is not None and not rule.allows(value):
            raise UserError(refusal(key, value, rule))
        OmegaConf.update(config, key, value)
    return config
