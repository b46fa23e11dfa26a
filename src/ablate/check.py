"""Whether the parts of a composition fit together: pure, quick, everything wrong at once.

Three questions in this order: is every key read by something (known.py), is every value allowed
(values.py), do the parts go together (conflicts.py). torch is not imported for parts of ours.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from ablate.conflicts import CONFLICTS
from ablate.errors import UserError
from ablate.facts import Facts, Unreadable
from ablate.known import unknown_keys, unknown_study_keys
from ablate.rules import refusal, written
from ablate.values import rule_of

NOT_OURS = {"choices", "hydra"}
OF_ONE_RUN = {"study.name", "study.arm", "study.packed", "study.batched"}


def check(cfg: DictConfig) -> None:
    """Refuses a composition with a UserError of one line that lists everything wrong with it."""
    try:
        lines = [*unknown_keys(cfg), *_wrong_values(cfg), *_conflicts(cfg)]
    except OmegaConfBaseException as error:  # ${..} that leads nowhere
        raise UserError(" ".join(str(error).split())) from error
    if lines:
        raise UserError("; ".join(lines))


def check_study(cfg: DictConfig) -> None:
    """Refuses what is wrong with the node `study` of a command that starts several runs."""
    if lines := [*unknown_study_keys(cfg), *_wrong_values(cfg.study, "study")]:
        raise UserError("; ".join(lines))


def check_alone(cfg: DictConfig, overrides: Sequence[str]) -> None:
    """Refuses a plan that was handed to one run, which would do nothing with it."""
    keys = [text.partition("=")[0].lstrip("+") for text in overrides]
    for key in keys:
        if key.startswith("study.") and key not in OF_ONE_RUN:
            raise UserError(
                f"{key} says how several runs are planned, and this is one; give a key several"
                " values and add -m, or choose a sweep"
            )
        if key.startswith(("hydra/launcher", "hydra.launcher")):
            raise UserError(
                f"{key} says where several runs are trained, and this is one, which is trained"
                " here; give a key several values and add -m, or choose a sweep"
            )
    if cfg.study.factors and cfg.study.arm is None:
        raise UserError(
            "study.factors is a plan of several runs, which hydra/sweeper=ablation reads; leave"
            " hydra.mode and hydra/sweeper as they are, or name one of its runs with study.arm="
        )


def check_devices(cfg: DictConfig) -> None:
    """Refuses devices that this machine does not have, and to compile without a compiler. Imports
    torch."""
    from ablate.kernel.chunked import compiler

    kind, there = accelerator(cfg.trainer.accelerator)
    devices = cfg.trainer.devices
    if kind == "cpu":
        if OmegaConf.is_list(devices):
            raise UserError(
                f"trainer.devices={devices}: a CPU's processes have no numbers; write how many"
                f" there are, trainer.devices={len(devices)}"
            )
    elif devices != "auto":
        numbers = list(range(devices)) if isinstance(devices, int) else list(devices)
        if len(set(numbers)) < len(numbers):
            raise UserError(f"trainer.devices={devices}: holds a number twice")
        if max(numbers) >= there:
            raise UserError(f"trainer.devices={devices}: this machine has {there} GPU(s)")
    if kind == "mps" and cfg.trainer.strategy != "auto":
        raise UserError(
            f"trainer.strategy={cfg.trainer.strategy} cannot run on Apple's GPU (mps); use"
            " trainer.strategy=auto, or trainer.accelerator=cpu"
        )
    if cfg.get("compile") and not compiler(kind):
        raise UserError("compile=true needs a C++ compiler (g++ or clang++) on the path")
    if kind == cfg.trainer.accelerator:  # `check` has seen it
        return
    # What is refused on a CPU is refused where no GPU was found, too.
    here = cfg.copy()
    here.trainer.accelerator = kind
    if lines := list(_conflicts(here)):
        raise UserError("; ".join(lines))


def accelerator(asked: str) -> tuple[str, int]:
    """What Lightning takes for trainer.accelerator here (cuda, mps or cpu), and how many GPUs."""
    import torch

    there = {
        "mps": int(torch.backends.mps.is_available()),
        "cuda": torch.cuda.device_count(),
        "cpu": 0,
    }
    order = {"auto": ("mps", "cuda", "cpu"), "gpu": ("mps", "cuda")}.get(asked, (asked,))
    for kind in order:
        if kind == "cpu" or there[kind]:
            return kind, there[kind]
    raise UserError(
        f"trainer.accelerator={asked}: torch sees no such GPU on this machine; use trainer=cpu"
    )


def check_output(run_dir: Path) -> None:
    """Makes a run's folder, or refuses one that cannot be written."""
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=run_dir):
            pass
    except OSError as error:
        raise UserError(
            f"output_dir: cannot write to {run_dir} ({error.strerror}); choose another folder"
        ) from error


def _wrong_values(cfg: DictConfig, node: str = "") -> Iterator[str]:
    for path, value in leaves(cfg, node):
        if value == "???":
            yield f"{path} is missing; write {path}=VALUE"
        elif (rule := rule_of(path)) is not None and not rule.allows(value):
            yield refusal(path, value, rule)


def leaves(cfg: DictConfig, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every key that holds a value, such as ("model.heads", 4); "???" where it is missing."""
    for key in cfg:
        full = f"{path}.{key!s}" if path else str(key)
        if full in NOT_OURS:
            continue
        value: Any = "???" if OmegaConf.is_missing(cfg, key) else cfg[key]
        if OmegaConf.is_dict(value):
            yield from leaves(value, full)
        else:
            yield full, value


def _conflicts(cfg: DictConfig) -> Iterator[str]:
    facts = Facts(cfg)
    for conflict in CONFLICTS:
        try:
            if conflict.when(facts):
                yield re.sub(r"\{(:?)([\w.]+)\}", lambda m: _filled(m, facts), conflict.says)
        except Unreadable:
            continue


def _filled(match: re.Match[str], facts: Facts) -> str:
    """The value of a key, the name of a part, or (after a colon) a fact."""
    fact, path = match.groups()
    if fact:
        return str(getattr(facts, path))
    value = facts(path)
    return facts.name(path) if OmegaConf.is_dict(value) else written(value)
