"""Check that the parts of a composition fit together, and report all errors at once.

Three questions in this order: is every key read by something (keys.py), is every value allowed
(schema.py), do the parts go together (conflicts.py, and `conflicts` of their classes). The last two
import the classes, and torch.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from omegaconf import DictConfig, OmegaConf

from ablate.config.conflicts import conflicts
from ablate.config.keys import (
    MISSING,
    default_of,
    nodes_of_groups,
    resolved,
    unknown_keys,
    unknown_study_keys,
)
from ablate.config.layers import compositions, wrong_patterns
from ablate.config.overrides import MOST, value_text
from ablate.config.parts import locate
from ablate.config.rules import refusal
from ablate.config.schema import missing_base_class, names_class, ruled
from ablate.errors import UserError

OF_ONE_RUN = {"study.name", "study.arm"}


def check(cfg: Mapping[str, Any]) -> None:
    """Raise a one-line UserError that lists everything wrong with a composition."""
    values = resolved(cfg)
    if not (lines := [*wrong_parts(values)]):
        lines = [*unknown_keys(values)]
    if not lines:  # the rest imports the parts, and torch
        wrong, of_layers = wrong_values(values), wrong_layers(values)
        lines = [*wrong.values(), *wrong_patterns(values)] or of_layers
        if not of_layers:
            lines += conflicts(values, wrong)
    if lines:
        raise UserError(*lines)


def check_study(cfg: DictConfig) -> None:
    """Raise UserError for errors in the node `study` of a command that starts several runs."""
    if lines := [*unknown_study_keys(cfg), *wrong_values(cfg.study, "study").values()]:
        raise UserError(*lines)


def check_alone(
    study: Mapping[str, Any], overrides: Sequence[str], *, searched: bool = False
) -> None:
    """Raise UserError for keys of a study that are given to a single run, which ignores them,
    unless their value is the default.

    searched: it is a trial of a search, such as Optuna's, which may have several seeds.
    """
    for key in (text.partition("=")[0].lstrip("+") for text in overrides):
        name = ".".join(key.split(".")[:2])
        usual = study.get(name.removeprefix("study.")) == default_of(name)
        of_study = name.startswith("study.") and name not in OF_ONE_RUN and not usual
        of_search = searched and key == "study.seeds"
        if (of_study and not of_search) or key.startswith(("hydra/launcher", "hydra.launcher")):
            raise UserError(
                f"{key} applies to multi-run studies only, and this is a single run; set a key to"
                " several values and add -m, or choose a sweep"
            )
    if study["factors"] and study["arm"] is None:
        raise UserError(
            "study.factors is a plan of several runs, which hydra/sweeper=ablation reads; leave"
            " hydra.mode and hydra/sweeper as they are, or name one of its runs with study.arm="
        )


def refuse_study(cfg: Mapping[str, Any]) -> None:
    """Raise UserError for a study when one run is trained, unless it is one of a study's runs."""
    study, sweep = cfg["study"], cfg["choices"].get("sweep")
    if study["arm"] is None and (sweep or study["factors"] or study["seeds"] != 1):
        typed = f"sweep={sweep}" if sweep else "-m KEY=A,B study.seeds=N"
        raise UserError(
            "this is a study of several runs, and ablate.run trains one: run the command"
            f" python -m ablate {typed}"
        )


def seeds_of(seeds: int | Sequence[int], where: str = "study.seeds") -> tuple[int, ...]:
    """The seeds of study.seeds, a number or a list. Raises UserError."""
    if (count := seeds if isinstance(seeds, int) else len(seeds)) > MOST:
        raise UserError(f"{where}: {count:,} seeds, and at most {MOST:,} are possible")
    if isinstance(seeds, int):
        return tuple(range(seeds))
    if seeds and (twice := Counter(seeds).most_common(1)[0])[1] > 1:
        raise UserError(f"{where}: duplicate seed {twice[0]}")
    return tuple(seeds)


def wrong_parts(cfg: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for every node that cannot be built: one that is a value, as a file that names
    an option writes it (`model: {ffn: relu}`), or whose class is none, is built in another way than
    the group's or is not a subclass of their base."""
    for group, node in nodes_of_groups(cfg):
        if not isinstance(node, dict):
            yield (
                f"{group}={value_text(node)}: is an option, not a value; in a file write"
                f" `- override /{group}: {value_text(node)}` in its defaults list"
            )
        elif "_target_" in node:
            made = {"_target_": node["_target_"], "_partial_": node.get("_partial_", False)}
            lines = [*wrong_values(made, group).values()]
            if not lines and (base := missing_base_class(group, node["_target_"])):
                lines.append(f"{group}._target_={node['_target_']}: must be a subclass of {base}")
            yield from lines
        elif cfg["choices"].get(group) and names_class(group):
            yield (
                f"{group}._target_ is missing; the file of an option has a line"
                " `_target_: module.Class`"
            )


def wrong_values(cfg: Mapping[str, Any], node: str = "") -> dict[str, str]:
    """A line for every key whose value is missing or not allowed."""
    wrong = {}
    for path, value, rule in ruled(cfg, node):
        if value == MISSING:
            wrong[path] = f"{path} is missing; write {path}=VALUE"
        elif rule is not None and not rule.allows(value):
            wrong[path] = refusal(path, value, rule)
    return wrong


def wrong_layers(cfg: Mapping[str, Any]) -> list[str]:
    """A line for every unread key and wrong value of model.layers."""
    lines: dict[str, None] = {}
    for _, composition in compositions(cfg):
        wrong = [*wrong_parts(composition)]
        wrong = wrong or [*unknown_keys(composition), *wrong_values(composition).values()]
        lines |= dict.fromkeys(wrong)
    return [f"model.layers: {line}" for line in lines]


def value_of(result: Mapping[str, Any]) -> float | None:
    """Return the metric's value from the content of result.json; None if it has none."""
    value: float | None = (result.get("metric") or {}).get("value")
    return value


def check_direction(sweeper: DictConfig, task: DictConfig) -> None:
    """Raise UserError for a search in the wrong direction; Optuna minimizes by default."""
    direction = OmegaConf.select(sweeper, "direction")
    if direction is None:
        return
    listed = direction if OmegaConf.is_list(direction) else [direction]
    names = [str(getattr(item, "name", item)) for item in listed]
    metric, mode = locate(task._target_).metric, locate(task._target_).mode
    if names != [f"{mode}imize"]:
        raise UserError(
            f"hydra.sweeper.direction={','.join(names)}: runs are compared by {metric}, whose"
            f" best value is the {mode}imum; set hydra.sweeper.direction={mode}imize"
        )
