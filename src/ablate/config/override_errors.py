"""Explain wrong overrides in one line, with the nearest valid name.

Hydra's own messages speak of struct mode and defaults lists. Here, once Hydra has rejected a
composition, every override is looked up again among the options, and all errors are reported at
once.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from hydra.core.override_parser.types import ChoiceSweep, Glob, IntervalSweep, Override
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import InterpolationResolutionError

from ablate.config.keys import flatten, no_key, no_value, unresolved
from ablate.config.overrides import parse, require_few
from ablate.config.synonyms import option_hint
from ablate.config.tree import COMPOSITION_ERRORS, Tree
from ablate.errors import UserError

# Groups with several options at once, [OPTION, OPTION]: each is a node with its name.
SEVERAL = ("callbacks",)

# External launchers and sweepers, and the names of their packages, hydra-NAME-launcher.
PLUGINS = {name: name for name in ("joblib", "optuna", "ax", "nevergrad")}
PLUGINS |= {"submitit_local": "submitit", "submitit_slurm": "submitit", "ray_aws": "ray"}


def refuse_unread(overrides: Sequence[str], tree: Tree) -> None:
    """Raise UserError for overrides that cannot be parsed, or that Hydra accepts but none reads."""
    lines: list[str] = [*_spaced(overrides)]
    parsed = [_parse(text) for text in overrides] if not lines else []
    for override in parsed:
        if isinstance(override, str):
            lines.append(override)
        elif not override.is_hydra_override():
            lines.extend(_unread(override, tree))
    lines += _hidden([override for override in parsed if isinstance(override, Override)])
    if lines:
        raise UserError(*lines)


# Nodes of a study whose keys are keys of the config, which the plan checks.
FREE = ("study.factors.", "study.blocks.", "study.tune.")


def refuse_swept(overrides: Sequence[str], tree: Tree) -> None:
    """Raise UserError for keys with several values that do not exist: else they are composed after
    torch is imported. With several options of a group, each may have other keys."""
    swept = [override for override in map(parse, overrides) if override.is_sweep_override()]
    if not any(map(tree.chooses, swept)) and (
        lines := [*dict.fromkeys(_mistakes(overrides, tree, many=True))]
    ):
        raise UserError(*lines)


def _spaced(overrides: Sequence[str]) -> Iterator[str]:
    """Yield a line if a space has split an override into several words, or is in its key."""
    for number, text in enumerate(overrides):
        key, sign, _ = text.partition("=")
        if (sign and key == "".join(key.split()) and not text.endswith(",")) or text[:1] == "~":
            continue
        words = overrides[max(0, number - 1) : number + 3]
        mended = re.sub(r"\s*([=,])\s*", r"\1", " ".join(words))
        mended = re.sub(r"(?<!\S)([\w./]+)(?:: ?| )(?=[^\s=]+(?!\S))", r"\1=", mended)
        if mended and all("=" in word and word[-1] != "," for word in mended.split()):
            yield f"'{' '.join(words)}': write {mended}"
        else:
            quoted = f"{words[0].partition('=')[0] or 'KEY'}='A TEXT'"
            yield f"cannot read '{text}'; write KEY=VALUE, or quote a string: \"{quoted}\""
        return


def _hidden(overrides: Sequence[Override]) -> Iterator[str]:
    """Yield a line if values of a key would be lost, since another override also sets it."""
    first: dict[str, Override] = {}
    for override in overrides:
        value = override.value()
        values = value.list if isinstance(value, ChoiceSweep) else [value]
        for path in {path for one in values for path in _paths(override.key_or_group, one)}:
            before = first.setdefault(path, override)
            several = before.is_sweep_override() or override.is_sweep_override()
            if before is not override and several:
                yield (
                    f"'{before.input_line}' and '{override.input_line}' both set {path}; set all"
                    " its values in one override"
                )


def explain(error: Exception, overrides: Sequence[str], tree: Tree, *, many: bool) -> UserError:
    """Make a one-line UserError for a composition rejected with `error`. many: of several runs."""
    try:
        lines = list(dict.fromkeys(_mistakes(overrides, tree, many=many)))
    except COMPOSITION_ERRORS:
        lines = []  # not the overrides but a broken file, which Hydra's message describes
    if not lines and isinstance(error, InterpolationResolutionError):
        lines = [unresolved(error)]
    causes = [str(e) for e in (error, error.__cause__) if e is not None]
    return UserError(*(lines or [" ".join(" ".join(causes).split())]))


def _parse(text: str) -> Override | str:
    try:
        return parse(text)
    except UserError as error:
        return str(error)


def _unread(override: Override, tree: Tree) -> Iterator[str]:
    key, text = override.key_or_group, override.input_line
    if "/" in key or override.package is not None:
        yield f"'{text}': write {key.replace('/', '.')}={_value(override)} (a dot, no sign, no @)"
    elif override.is_delete():
        allowed = ", ".join(tree.options(key))
        instead = f"write {key}=OPTION, one of {allowed}" if allowed else "set another value"
        yield f"'{text}': nothing can be removed; {instead}"
    elif key == "sweep" and override.is_sweep_override():
        yield f"'{text}' names several studies: run one command per sweep"
    elif _is_empty(override, tree):
        yield f"'{text}' names no value"
    elif tree.chooses(override) and override.is_sweep_override():
        yield from _wrong_option(override, tree)  # Hydra would compose it after torch is imported
    elif tree.chooses(override) and isinstance(override.value(), list) and key not in SEVERAL:
        yield f"'{text}': write {key}=OPTION, one of {', '.join(tree.options(key))}"


def _is_empty(override: Override, tree: Tree) -> bool:
    """Whether an override with several values has none, or none that is an option."""
    value = override.value()
    if isinstance(value, IntervalSweep) or not override.is_sweep_override():
        return tree.chooses(override) and isinstance(value, IntervalSweep)
    if isinstance(value, Glob):
        return tree.chooses(override) and not _options(override, tree)
    require_few(override)
    return not [*override.sweep_iterator()]


def _value(override: Override) -> str:
    return (override.input_line or "").partition("=")[2] or "OPTION"


def _mistakes(overrides: Sequence[str], tree: Tree, *, many: bool) -> Iterator[str]:
    parsed = [p for p in map(_parse, overrides) if isinstance(p, Override)]
    chosen: dict[str, str] = {}
    for override in parsed:
        if tree.chooses(override):
            wrong = [*_wrong_option(override, tree)]
            yield from wrong
            if not wrong and (options := _options(override, tree)):
                chosen[override.key_or_group] = options[0]
    misplaced = dict(_misplaced(chosen, tree))
    yield from misplaced.values()
    base = tree.load([f"{g}={option}" for g, option in chosen.items() if g not in misplaced])
    many = many or base.hydra.mode == RunMode.MULTIRUN
    for override in parsed:
        if override.is_sweep_override() and not many:
            key, value = override.key_or_group, _value(override)
            yield (
                f"'{override.input_line}' names several values: add -m to run each, or write"
                f" {key}=[{value}] for a list"
            )
        if not tree.chooses(override) and not override.is_add():
            for path in _paths(override.key_or_group, override.value()):
                if not path.startswith(FREE):
                    yield from _unknown(path, override, base, tree)


def _options(override: Override, tree: Tree) -> list[str]:
    """Return the options that an override of a group names; those of a glob always exist."""
    value = override.value()
    if isinstance(value, Glob):
        return value.filter([*tree.options(override.key_or_group)])
    if override.is_discrete_sweep():
        require_few(override)
        return [str(name) for name in override.sweep_string_iterator()]
    names = value if isinstance(value, list) else [value]
    return ["null" if name is None else str(name) for name in names]


def _wrong_option(override: Override, tree: Tree) -> Iterator[str]:
    group, allowed = override.key_or_group, tree.options(override.key_or_group)
    if override.is_add() or override.is_force_add():
        yield f"'{override.input_line}': write {group}={_value(override)}, without a sign"
        return
    for option in _options(override, tree):
        if option not in allowed:
            hint = option_hint(group, option, allowed, tree.groups)
            near = f" ({hint})" if hint else ""
            more = _to_have(group, option)
            yield f"{group}={option}: no such option{near}; allowed: {', '.join(allowed)}{more}"


def _to_have(group: str, option: str) -> str:
    """How an option would be added: a plugin of Hydra, or a class."""
    if option in PLUGINS and group in ("hydra/launcher", "hydra/sweeper"):
        return f"; to have it: pip install hydra-{PLUGINS[option]}-{group.removeprefix('hydra/')}"
    if "." not in option:
        return ""
    file = f"DIR/{group}/NAME.yaml"
    return f"; for a class, write `_target_: {option}` to {file} and add --config-dir DIR"


def _misplaced(chosen: dict[str, str], tree: Tree) -> Iterator[tuple[str, str]]:
    """Yield the chosen parts for which the chosen model has no slot, each with an error line."""
    top = {g: o for g, o in chosen.items() if "." not in g}
    if top == chosen:
        return
    choices = tree.load([f"{g}={o}" for g, o in top.items()]).hydra.runtime.choices
    for group, option in chosen.items():
        if group not in choices:
            owner = group.split(".")[0]
            name = f"{owner}={choices.get(owner)}"
            slots = [g for g in choices if g.startswith(f"{owner}.")]
            parts = f"its parts: {', '.join(slots)}" if slots else "it has no parts to choose"
            yield group, f"{group}={option}: {name} has no {group}; {parts}"


def _paths(path: str, value: object) -> Iterable[str]:
    """The keys that an override sets: several if its value is {..}."""
    return flatten(value, path) if isinstance(value, dict) else (path,)


def _unknown(path: str, override: Override, base: DictConfig, tree: Tree) -> Iterator[str]:
    """Yield an error for a key that no chosen option has, with the keys of the node it ends in."""
    node: Any = base
    done = ""
    for part in path.split("."):
        if not OmegaConf.is_dict(node):
            if done != override.key_or_group:  # else the value is a mapping
                yield f"{override.input_line}: {done} is one value and has no keys"
            return
        full = f"{done}.{part}".lstrip(".")
        if part not in node.keys():  # noqa: SIM118  # `in` is false for ???
            inside = {str(key) for key in node} | (set() if done else {*tree.groups})
            if part.startswith("hydra/"):
                inside = {*tree.hydra_groups}
            values: Any = OmegaConf.to_container(base, resolve=False)
            nodes = [*values] if done.split(".")[0] != "hydra" else ["hydra"]
            cfg = {n: values[n] for n in nodes} | {"choices": base.hydra.runtime.choices}
            line = no_key(full, _value(override), inside, cfg, path)
            yield f"{override.input_line}: {line}"
            return
        done, node = full, node._get_node(part)
    if OmegaConf.is_dict(node) and not isinstance(override.value(), dict | None):
        several = override.is_sweep_override()
        require_few(override)
        value = [*override.sweep_iterator()] if several else override.value()
        yield no_value(path, value, {str(key) for key in node})
