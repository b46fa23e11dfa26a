"""Every key of training in the config tree does something in four steps of a tiny model."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from lightning.pytorch.strategies import DDPStrategy
from make_knobs import MEANINGLESS, Run, equal, keys_of, other, overrides, trained
from make_model import KERNEL_NEEDS, options
from make_rows import NEEDS, taker
from make_rows import written as as_typed
from make_rules import rules_of_options
from make_systems import list_of_systems

from ablate.config.composition import compose
from ablate.training.build import build, build_data, make_task
from ablate.training.train import prepare

# Where the first other value changes nothing in four steps.
OTHERS: dict[str, Any] = {
    "optimizer.lr": 0.01,
    "optimizer.matrix.ns_coefficients": [3.4445, -4.775, 2.0315],
    "optimizer.matrix.precondition_frequency": 1,
    "schedule.decay": 3,
}
# What an option needs so that its keys act in four steps.
BESIDE = {"schedule=wsd": ["schedule.decay=2"]}
# Keys of a task that change what is written after training: the key, another value, beside what.
WRITING: dict[str, tuple[str, list[str]]] = {
    "task.beam": ("4", []),
    "task.length_penalty": ("5.0", ["task.beam=4"]),
    "task.max_length": ("2", []),
}
ELSEWHERE = {
    "task.ema",  # test_average.py
    *list_of_systems("KEYS_ELSEWHERE"),
}
KNOBS = list_of_systems("KNOBS")
OTHER_TASKS = {task for task, *_ in KNOBS}


def cases() -> Iterator[Any]:
    """A choice, its key and another value. The second option with a key is a slow test."""
    seen: set[str] = set()
    for file, keys in sorted(rules_of_options().items()):
        group, name = file.removesuffix(".yaml").split("/")
        if group not in ("optimizer", "schedule", "task") or name in {
            *OTHER_TASKS,
            *list_of_systems("TASKS_ELSEWHERE"),
        }:
            continue
        for key, (now, rule) in keys.items():
            if key in ELSEWHERE | WRITING.keys() or key.endswith((*MEANINGLESS, "fused")):
                continue
            value = as_typed(OTHERS.get(key) or other(key, now, rule))
            slow = [pytest.mark.slow] if key in seen else []
            yield pytest.param(f"{group}={name}", key, value, marks=slow)
            seen.add(key)


@pytest.fixture(autouse=True, scope="module")
def _no_gpu(small_files: pytest.MonkeyPatch) -> None:
    small_files.setattr(torch.cuda, "device_count", lambda: 0)
    small_files.setattr(torch.backends, "mps", SimpleNamespace(is_available=lambda: False))


@pytest.mark.ci
def test_the_measure_is_repeatable() -> None:
    again = trained.__wrapped__("gpt")
    assert equal(trained("gpt").parameters, again.parameters)
    assert trained("gpt").rows == again.rows


def test_the_keys_of_other_tasks_are_tried_elsewhere() -> None:
    found = {
        (task, key)
        for task in OTHER_TASKS
        for key in rules_of_options()[f"task/{task}.yaml"]
        if key != "task.ema" and not key.endswith(MEANINGLESS)
    }
    assert found == {(task, key) for task, key, _ in KNOBS}


def written(*more: str) -> list[list[int]]:
    """What an untrained model writes for the validation sources."""
    cfg = compose(*overrides("rnn_seq2seq"), *more)
    data = build_data(cfg)
    task: Any = make_task(cfg, data, build(cfg, data).eval())
    return [f[0].tokens for batch in data.val_dataloader() for f in task.search(batch["source"])]


@pytest.mark.ci
@pytest.mark.parametrize("key", WRITING)
def test_every_knob_of_writing_changes_what_is_written(key: str) -> None:
    value, beside = WRITING[key]
    assert written(*beside) == written(*beside) != written(*beside, f"{key}={value}")


@pytest.mark.ci
@pytest.mark.parametrize(("choice", "key", "value"), cases())
def test_every_knob_of_a_part_changes_the_parameters(choice: str, key: str, value: str) -> None:
    chosen = taker(choice)[0], choice, *NEEDS.get(choice, []), *BESIDE.get(choice, [])
    assert not equal(trained(*chosen).parameters, trained(*chosen, f"{key}={value}").parameters)


# The Trainer's keys that act in one process: what is set, what is looked at, and what it is then.
def validations(run: Run) -> int:
    return sum("val/loss" in row for row in run.rows)


def last(run: Run) -> float:
    return run.rows[-1]["step"]


def of_all(loss: float) -> bool:
    return loss == trained("gpt").rows[-1]["val/loss"]


# An epoch is 5 batches: 19,960 characters in windows of 8, 480 windows at a time.
EPOCH = "data.batch_size=480 trainer.max_steps=-1 trainer.max_epochs=1"
EPOCHS = f"{EPOCH} trainer.max_epochs=3 trainer.val_check_interval=null"
TRAINER: dict[str, tuple[str, Callable[[Run], Any], Any]] = {
    "precision": ("64-true", lambda run: next(iter(run.parameters.values())).dtype, torch.float64),
    "max_steps": ("6", last, 6),
    "max_epochs": (f"1 {EPOCH}", last, 5),
    "val_check_interval": ("1", validations, 4),
    "check_val_every_n_epoch": (f"1 {EPOCHS}", validations, 3),
    "val_examples": ("1", lambda run: of_all(run.rows[-1]["val/loss"]), False),
    # batches, steps, windows, tokens
    "accumulate_grad_batches": ("3", lambda run: run.units, 3 * 4 * 2 * 8),
    "log_every_n_steps": ("2", lambda run: sum("train/loss" in row for row in run.rows), 2),
    "deterministic": ("true", lambda run: run.deterministic, True),
}


@pytest.mark.ci
@pytest.mark.parametrize("name", options("trainer"))
def test_no_key_of_the_trainer_is_left_out(name: str) -> None:
    places = {"accelerator", "devices", "num_nodes", "strategy", "shards"}
    found = {key.partition(".")[2] for key in keys_of(compose(f"trainer={name}"), "trainer")}
    assert found == {*TRAINER, *places, "gradient_clip_val"}


@pytest.mark.ci
@pytest.mark.parametrize("key", TRAINER)
def test_every_knob_of_the_trainer_changes_what_it_says(key: str) -> None:
    changed, look, expected = TRAINER[key]
    assert look(trained("gpt", *f"trainer.{key}={changed}".split())) == expected
    assert look(trained("gpt")) != expected


@pytest.mark.ci
def test_clipping_bounds_the_step() -> None:
    """Of plain descent: no parameter moves farther than rate times norm, all steps together."""
    plain = ["optimizer=sgd", "optimizer.momentum=0", "optimizer.lr=1", "schedule=constant"]
    start = dict(build(compose(*overrides("gpt"))).named_parameters())

    def moved(clip: str) -> float:
        after = trained("gpt", *plain, f"trainer.gradient_clip_val={clip}").parameters
        return float(sum((after[n] - start[n]).square().sum() for n in start) ** 0.5)

    assert moved("0.01") <= 4 * 0.01 + 1e-6
    assert moved("null") > 1


PLACES = {
    "devices=1": (1, 1, False),
    "devices=2": (2, 1, True),
    "num_nodes=2": (1, 2, True),
    "strategy=ddp": (1, 1, True),
}


@pytest.mark.parametrize("typed", PLACES)
def test_every_knob_of_the_place_changes_it(typed):
    """Processes on a node, nodes, and whether gradients are averaged."""
    cfg = compose(*overrides("gpt"), f"trainer.{typed}")
    data = build_data(cfg)
    with mock.patch.dict(os.environ):
        trainer, *_ = prepare(cfg, Path("nowhere"), data, build(cfg, data))
    averaged = isinstance(trainer.strategy, DDPStrategy)
    assert (trainer.num_devices, trainer.num_nodes, averaged) == PLACES[typed]


@pytest.mark.ci
def test_no_key_of_a_kernel_is_left_out() -> None:
    """Kernels change no number: test_knobs.py. Their keys change how it is computed."""
    for name in options("kernel"):
        own = {"kernel.chunk", "kernel.compile"} if name == "chunked" else set()
        assert keys_of(compose(f"kernel={name}", *KERNEL_NEEDS.get(name, [])), "kernel") == own


@pytest.mark.ci
def test_every_knob_at_the_top_changes_what_it_says() -> None:
    cfg = compose()
    top = {key for key in cfg if not isinstance(cfg.get(key), dict) and key not in cfg.choices}
    assert top - {"choices"} == {
        *("seed", "output_dir", "run_dir", "study", "checkpoint_every"),
        *("init_from", "init_optimizer"),  # test_transfer.py
        *("checkpoint_keep", "compile", "evaluate"),  # test_train.py, _compiled.py, _conditions.py
    }
    assert not equal(trained("gpt").parameters, trained("gpt", "seed=1").parameters)
    assert trained("gpt").previous == 2
    assert trained("gpt", "checkpoint_every=1").previous == 3


def test_a_fused_optimizer_is_one_call_and_clips_in_bfloat16() -> None:
    """Lightning refuses to clip for an optimizer that would unscale gradients in its step."""
    with mock.patch("torch._fused_adamw_", wraps=torch._fused_adamw_) as fused:
        trained.__wrapped__("gpt", "trainer.precision=bf16-mixed")
    assert fused.call_count == 4 * 2  # steps, and groups: with and without decay
