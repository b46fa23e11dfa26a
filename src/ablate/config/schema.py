"""The rule of every key: of components the annotation of the parameter (parts.py), of the run, its
study and trainer, and of third-party optimizers the entry here.

A key without a rule here takes the type of its default.
"""

import inspect
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from ablate.config.keys import default_of, parts_in
from ablate.config.overrides import quoted_where
from ablate.config.parts import OURS, locate, parameter_rules
from ablate.config.rules import (
    COUNT,
    NOT_NEGATIVE,
    OF_TYPE,
    POSITIVE,
    PROCESSES,
    SEED,
    SHARE,
    Below,
    Bool,
    Exactly,
    Int,
    Keys,
    ListOf,
    Rule,
    RunFolder,
    Text,
    either,
    one_of,
    or_null,
)
from ablate.config.tree import config_files, groups

VALUES: dict[str, Rule] = {
    "seed": SEED,
    "init_from": or_null(RunFolder()),
    "init_optimizer": Bool(),
    "output_dir": Text(),
    "run_dir": or_null(Text()),
    "study.name": Below("output_dir"),
    "study.baseline": ListOf(Text(), least=0),
    "study.factors": or_null(Keys()),
    "study.design": or_null(one_of("one_factor", "leave_one_out", "pairs", "factorial")),
    "study.seeds": either(COUNT, ListOf(SEED)),
    "study.seeds_up_to": or_null(COUNT),
    "study.blocks": or_null(Keys()),
    "study.metric": or_null(Text()),
    "study.extra_metrics": ListOf(Text(), least=0),
    "study.mode": or_null(one_of("min", "max")),
    "study.exclude": ListOf(Keys(), least=0),
    "study.on_invalid": one_of("error", "skip"),
    "study.match": or_null(one_of("parameters", "flops")),
    "study.match_by": Text(),
    "study.tune": or_null(Keys()),
    "study.tune_seeds": either(COUNT, ListOf(SEED)),
    "study.margin": or_null(POSITIVE),
    "study.noise": or_null(either(Text(), ListOf(Text()))),
    "study.effect": or_null(POSITIVE),
    "study.claims": ListOf(Keys(), least=0),
    "study.arms": or_null(ListOf(Text())),
    "study.rerun": one_of("missing", "failed", "all"),
    "study.dry_run": Bool(),
    "study.confirm_large": Bool(),
    "study.arm": or_null(Text()),
    "evaluate": or_null(Keys()),
    "checkpoint_every": COUNT,
    "checkpoint_keep": one_of("all", "last", "best", "none"),
    "compile": Bool(),
    # Lightning's Trainer
    "trainer.accelerator": one_of("cpu", "gpu", "cuda", "mps", "auto"),
    "trainer.devices": either(Int(1, PROCESSES), one_of("auto"), ListOf(Int(0))),
    "trainer.num_nodes": Int(1, 2**16),
    "trainer.strategy": one_of("auto", "ddp", "fsdp"),
    "trainer.shards": or_null(Int(2, PROCESSES)),
    "trainer.precision": one_of(
        "32-true", "16-mixed", "bf16-mixed", "16-true", "bf16-true", "64-true"
    ),
    "trainer.max_steps": either(COUNT, Exactly(-1)),
    "trainer.max_epochs": or_null(COUNT),
    "trainer.val_check_interval": or_null(COUNT),
    "trainer.val_examples": or_null(COUNT),
    "trainer.check_val_every_n_epoch": or_null(COUNT),
    "trainer.gradient_clip_val": or_null(POSITIVE),
    "trainer.accumulate_grad_batches": COUNT,
    "trainer.log_every_n_steps": COUNT,
    "trainer.deterministic": either(Bool(), one_of("warn")),
}

# Of the third-party optimizers that built-in options name.
OPTIMIZER: dict[str, Rule] = {
    "lr": POSITIVE,
    "betas": ListOf(SHARE, length=2),
    "eps": NOT_NEGATIVE,
    "weight_decay": NOT_NEGATIVE,
    "momentum": SHARE,
    "nesterov": Bool(),
    "fused": Bool(),
}


@dataclass(frozen=True)
class ClassOf:
    """module.Class of an option of the group, or of a custom class: not of another group's
    option."""

    group: str

    def allows(self, value: object) -> bool:
        if not isinstance(value, str) or "." not in value:
            return False
        return value in classes_in(self.group) or value not in classes_in("*")

    def __str__(self) -> str:
        return f"module.Class: a class of {self.group} or a custom one"


@cache
def classes_in(group: str) -> frozenset[str]:
    return frozenset(part["_target_"] for part in parts_in(group))


@cache
def names_class(group: str) -> bool:
    """Whether every option of a group names a class."""
    return 0 < len(parts_in(group)) == len(config_files(f"{group}/*.yaml"))


@cache
def base_of(group: str) -> type | None:
    """The built-in class that all options of a group inherit from; None if they have none, or
    one of them is a function or another package's."""
    targets = [part["_target_"] for part in parts_in(group)]
    if not targets or not all(target.startswith(OURS) for target in targets):
        return None
    parts = [locate(target) for target in targets]
    if not all(map(inspect.isclass, parts)):
        return None
    bases: list[type] = [base for base in parts[0].__mro__ if base.__module__.startswith(OURS)]
    return next((base for base in bases if all(issubclass(part, base) for part in parts)), None)


@cache
def missing_base_class(group: str, target: str) -> str | None:
    """The base of a group's options that a third-party class does not have; None if it has, or
    is a function. Raises UserError if it cannot be imported."""
    if target.startswith(OURS) or (base := base_of(group)) is None:
        return None
    part = locate(target)
    if not inspect.isclass(part) or issubclass(part, base):
        return None
    # As the group's own package exports it, if it does.
    package = sys.modules.get(f"ablate.{group}")
    home = f"ablate.{group}" if getattr(package, base.__name__, None) is base else base.__module__
    return f"{home}.{base.__name__}"


# Of Hydra's own, which our checks do not read.
HYDRAS_TEXTS = {"hydra.run.dir", "hydra.sweep.dir", "hydra.sweep.subdir", "hydra.job.name"}


@quoted_where
@cache
def takes_texts(path: str, listed: bool) -> bool:
    """Whether a key takes any text, or with `listed` a list of texts, and neither numbers nor truth
    values, in any built-in option."""
    if path in HYDRAS_TEXTS:
        return not listed
    text, *others = ([one] if listed else one for one in ("1", 1, 1.0, True))
    if path in VALUES:
        rules: list[Rule | None] = [VALUES[path]]
    else:
        group, _, key = path.rpartition(".")
        parts = [part for part in parts_in(group) if key in part] if group in groups() else []
        if any(isinstance(part[key], bool | int | float) for part in parts):
            return False  # without the import of the class
        rules = [rule_of(path, part["_target_"], group) for part in parts]
    return bool(rules) and all(
        rule is not None and rule.allows(text) and not any(map(rule.allows, others))
        for rule in rules
    )


@cache
def rule_of(path: str, target: str = "", node: str = "") -> Rule | None:
    """The rule of a key such as "model.heads". target: the class at its `node`, such as
    "model"; None for a key of whose values nothing is known."""
    group, _, key = path.rpartition(".")
    if path in VALUES:
        return VALUES[path]
    if group and key == "_target_":
        return ClassOf(group)
    if group and key == "_partial_":
        ways = {part.get(key, False) for part in parts_in(group)}
        return Exactly(*ways) if len(ways) == 1 else None
    if target.startswith(OURS) or (target and target not in classes_in(node)):
        return parameter_rules(target).get(path.removeprefix(f"{node}."))
    if node.split(".")[0] == "optimizer" and key in OPTIMIZER:
        return OPTIMIZER[key]
    return OF_TYPE.get(type(default_of(path)))


def look_up(values: Mapping[str, Any], path: str) -> tuple[Any, Rule | None]:
    """The value of a key of a plain composition, and its rule. Raises KeyError if it has none."""
    value: Any = values
    target, depth = "", 0
    names = path.split(".")
    for passed, name in enumerate(names):
        if not isinstance(value, dict) or name not in value:
            raise KeyError(path)
        if isinstance(value.get("_target_"), str):
            target, depth = value["_target_"], passed
        value = value[name]
    return value, rule_of(path, target, ".".join(names[:depth]))
