"""The rule of every key: of components the annotation of the parameter (parts.py), of the run, its
study and trainer, and of third-party optimizers the annotation here."""

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, reduce
from operator import getitem
from typing import Annotated, Any, Literal, TypedDict

from ablate.config.keys import parts_in, to_dict
from ablate.config.parts import OURS, locate, parameters, rules_of
from ablate.config.rules import (
    PROCESSES,
    Below,
    Count,
    Int,
    Keys,
    ListOf,
    NotNegative,
    OneOf,
    Positive,
    Processes,
    Rule,
    RunDir,
    Seed,
    Share,
    String,
    names_run,
)
from ablate.config.tree import config_files

Node = Annotated[Mapping[str, Any], Keys()]
Nodes = Annotated[list[Any], ListOf(Keys(), least=0)]
Strings = Annotated[list[str], ListOf(String(), least=0)]


class LadderKeys(TypedDict):
    sizes: list[str] | None
    tokens_per_parameter: Positive
    rules: Literal["olmo", "nanochat", "mup", "completep"]


class StudyKeys(TypedDict):
    name: Annotated[str, Below("output_dir")]
    baseline: Strings
    factors: Node | None
    design: Literal["one_factor", "leave_one_out", "pairs", "factorial"] | None
    seeds: Count | list[Seed]
    seeds_up_to: Count | None
    blocks: Node | None
    ladder: LadderKeys
    metric: str | None
    extra_metrics: Strings
    mode: Literal["min", "max"] | None
    exclude: Nodes
    on_invalid: Literal["error", "skip"]
    match: Literal["parameters", "flops"] | None
    match_by: str
    tune: Node | None
    tune_seeds: Count | list[Seed]
    margin: Positive | None
    noise: str | list[str] | None
    effect: Positive | None
    claims: Nodes
    arms: list[str] | None
    rerun: Literal["missing", "failed", "all"]
    dry_run: bool
    confirm_large: bool
    arm: str | None


class TrainerKeys(TypedDict):
    """Of Lightning's Trainer."""

    accelerator: Literal["cpu", "gpu", "cuda", "mps", "auto"]
    devices: Processes | Literal["auto"] | list[Annotated[int, Int(0)]]
    num_nodes: Annotated[int, Int(1, 2**16)]
    strategy: Literal["auto", "ddp", "fsdp"]
    shards: Annotated[int, Int(2, PROCESSES)] | None
    precision: Literal[
        "32-true", "16-mixed", "bf16-mixed", "fp8-mixed", "16-true", "bf16-true", "64-true"
    ]  # fmt: skip
    max_steps: Count | Literal[-1]
    max_epochs: Count | None
    val_check_interval: Count | None
    val_examples: Count | None
    check_val_every_n_epoch: Count | None
    gradient_clip_val: Positive | None
    accumulate_grad_batches: Count
    log_every_n_steps: Count
    deterministic: bool | Literal["warn"]


class RunKeys(TypedDict):
    seed: Seed
    init_from: RunDir | None
    init_optimizer: bool
    output_dir: str
    run_dir: str | None
    evaluate: Node | None
    checkpoint_every: Count
    checkpoint_keep: Literal["all", "last", "best", "none"]
    compile: bool
    study: StudyKeys
    trainer: TrainerKeys


class OptimizerKeys(TypedDict):
    """Of the third-party optimizers that built-in options name."""

    lr: Positive
    betas: tuple[Share, Share]
    eps: NotNegative
    weight_decay: NotNegative
    momentum: Share
    nesterov: bool
    ns_steps: Count
    ns_coefficients: tuple[float, float, float]
    precondition_frequency: Count
    adjust_lr_fn: Literal["original", "match_rms_adamw"]
    fused: bool


VALUES, OPTIMIZER = rules_of(RunKeys), rules_of(OptimizerKeys)


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
        return OneOf(tuple(ways)) if len(ways) == 1 else None
    if target.startswith(OURS) or (target and target not in classes_in(node)):
        return parameters(target).rules.get(path.removeprefix(f"{node}."))
    return OPTIMIZER.get(key) if node.split(".")[0] == "optimizer" else None


def ruled(
    cfg: Mapping[str, Any], path: str = "", part: tuple[str, str] = ("", "")
) -> Iterator[tuple[str, Any, Rule | None]]:
    """Yield every key with its value and rule. A key that has a rule is one value, even if that
    is a mapping. part: the class that reads the node `cfg`, and the path of its own node."""
    cfg = to_dict(cfg)
    if isinstance(target := cfg.get("_target_"), str):
        part = target, path
    for key, value in cfg.items():
        name = f"{path}.{key}" if path else str(key)
        rule = rule_of(name, *part)
        if isinstance(value, dict) and rule is None:
            yield from ruled(value, name, part)
        elif not name.startswith("choices."):
            yield name, value, rule


def replace_run_folders(values: dict[str, Any], new: Callable[[str, str], str]) -> None:
    """Set every key that names the folder of another run to `new` of the key and its value."""
    for path, value, rule in ruled(values):
        if isinstance(value, str) and names_run(rule):
            *nodes, leaf = path.split(".")
            reduce(getitem, nodes, values)[leaf] = new(path, value)
