"""Find keys that nothing reads, such as a typo added with `+` or in an experiment file."""

import inspect
import re
from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, cast

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from ablate.config.overrides import ALIASES, value_text
from ablate.config.parts import OURS, locate, parameters
from ablate.config.synonyms import KEYS, key_hint, same_name
from ablate.config.tree import config_file, config_files, groups
from ablate.errors import UserError, suggest

# Paths of files in data.*; the content of the files enters ids through the data's fingerprint.
FILES = (
    "path",
    "root",
    *(f"{split}{side}" for split in ("", "val_", "test_") for side in ("source", "target")),
)

FREE = {"callbacks", "evaluate"}  # its keys are names


class YamlLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """As OmegaConf reads YAML, for which 1e-5 is a number; in C ten times as fast."""


YamlLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"),
    list("-+0123456789"),
)
EVERYWHERE = {"_target_", "_partial_"}
ROOT = {"choices", "hydra"}
MISSING = "???"

# Why such a key does not exist, or its replacement.
CUT = "would cut training or evaluation short, so the metrics in result.json would be wrong"
OF_EVERY_RUN = (
    "barebones", "enable_checkpointing", "enable_model_summary", "enable_progress_bar",
    "inference_mode", "reload_dataloaders_every_n_epochs", "use_distributed_sampler",
)  # fmt: skip
REFUSED_KEYS = {
    "study.pack": "hydra.launcher.max_parallel_runs=N trains N runs at once, on one device too",
    "logger.watch": "histograms of every gradient slow training; a callback can log a selection",
    "trainer.max_time": f"{CUT}; trainer.max_steps=N",
    "trainer.min_steps": "a run trains trainer.max_steps",
    "trainer.min_epochs": "a run trains trainer.max_epochs",
    "trainer.fast_dev_run": "debug=fast does a few steps of everything",
    "trainer.overfit_batches": "debug=overfit",
    **{f"trainer.limit_{s}_batches": f"{CUT}; debug=fast" for s in ("train", "test")},
    "trainer.limit_val_batches": f"{CUT}; trainer.val_examples=N cuts validation in training",
    "trainer.callbacks": "the group callbacks, +callbacks.NAME._target_=CLASS",
    "trainer.logger": "the group logger",
    "trainer.profiler": "its table would be lost; debug=profile prints torch.profiler's",
    "trainer.default_root_dir": "output_dir=DIR",
    "trainer.num_sanity_val_steps": "debug=fast validates after a few steps",
    **{f"trainer.{key}": "every run sets it" for key in OF_EVERY_RUN},
}
# Arguments of the Trainer that are not keys: training/trainer.py passes its own values.
TRAINER = "lightning.pytorch.Trainer"
GIVEN = {TRAINER: {key.partition(".")[2] for key in REFUSED_KEYS if key.startswith("trainer.")}}


def to_dict(cfg: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a composition as a dictionary; MISSING for missing values.

    Reading a key of a DictConfig takes a hundred times as long as one of a dictionary.
    """
    return cast(Mapping[str, Any], plain(cfg))


def plain(value: Any) -> Any:
    """Return the resolved content of a node; another value as it is."""
    return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value


def resolved(cfg: Mapping[str, Any]) -> Mapping[str, Any]:
    """`to_dict`; raises UserError for an interpolation that cannot be resolved."""
    with interpolations():
        return to_dict(cfg)


@contextmanager
def interpolations() -> Iterator[None]:
    """Raise UserError, which names the key, for an interpolation that cannot be resolved."""
    try:
        yield
    except OmegaConfBaseException as error:
        raise UserError(unresolved(error)) from None


def unresolved(error: OmegaConfBaseException) -> str:
    reason = str(error).strip().partition("\n")[0]
    reason = re.sub(r"^\w+ raised while resolving interpolation: ", "", reason).strip('"')
    return f"{error.full_key}: {reason}" if error.full_key else reason


def unknown_keys(cfg: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for every key of the composition that nothing reads."""
    cfg = to_dict(cfg)
    allowed = {group for group in groups() if "." not in group} | {*_values()} | ROOT
    yield from _wrong(cfg, "", allowed, cfg)
    for key in sorted(allowed - ROOT - FREE - {"study"}):
        if isinstance(cfg.get(key), dict):
            yield from _in_node(cfg[key], key, cfg)
    yield from unknown_study_keys(cfg)


def nodes_of_groups(cfg: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield every group that the composition has with its node, such as ("model.mask", {...})."""
    for group in sorted(groups() - ROOT):
        node: Any = cfg
        for name in group.split("."):
            node = node.get(name) if isinstance(node, dict) else None
        if node is not None and node != MISSING:
            yield group, node


def unknown_study_keys(cfg: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for every key of the node `study` that is none, or if it is a value."""
    node, keys = cfg["study"], _values()["study"]
    for path in ("study", "study.ladder"):
        if not isinstance(node, Mapping):
            yield no_value(path, node, set(keys))
            return
        yield from _wrong(node, path, set(keys), {})
        node, keys = node.get("ladder"), keys.get("ladder", {})


@cache
def _values() -> dict[str, Any]:
    """Return the content of config.yaml without the defaults list: values and the node `study`."""
    content = yaml.safe_load(config_file("config.yaml").read_text())
    return {key: value for key, value in content.items() if key not in {"defaults", *ROOT}}


def _in_node(node: Mapping[str, Any], path: str, cfg: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for every unread key of a part, and of the parts in it."""
    target = node.get("_target_", "")
    if not isinstance(target, str):
        yield f"{path}._target_={value_text(target)}: must be the path of a class"
        return
    written = keys_of(target) if target else {}
    allowed = {*written}
    rest = {str(key) for key in node} - allowed - GIVEN.get(target, set())
    if rest and target and (not written or not target.startswith(OURS) or path == "optimizer"):
        # Of ByRole's, any role.
        given = base_constructor_arguments(target) if node.get("_partial_") else frozenset()
        allowed |= EVERYWHERE | (parameters(target).names - given - GIVEN.get(target, set()))
    if "**" not in allowed:
        yield from _wrong(node, path, allowed, cfg)
    for key, value in node.items():
        inside, name = written.get(str(key)), f"{path}.{key}"
        if isinstance(value, dict) and "_target_" in value:
            yield from _in_node(value, name, cfg)
        elif isinstance(value, dict) and inside:
            yield from _wrong(value, name, inside, cfg)
        elif inside:
            yield no_value(name, None if value == MISSING else value, inside)


def no_value(path: str, value: Any, inside: Set[str]) -> str:
    """The line for a node that is set to a value. inside: its keys."""
    shown = ", ".join(f"{path}.{name}" for name in sorted(inside - EVERYWHERE))
    meant = KEYS.get(path.rpartition(".")[2])  # model.layers=2, of other tools
    near = f" (did you mean {meant}={value_text(value)}?)" if meant else ""
    return f"{path}={value_text(value)}: is not a value{near}; set {shown}"


def _wrong(
    node: Mapping[str, Any], path: str, allowed: Set[str], cfg: Mapping[str, Any]
) -> Iterator[str]:
    for key in node:
        if str(key) not in allowed:
            yield no_key(f"{path}.{key!s}".lstrip("."), value_text(node[key]), allowed, cfg)


def no_key(full: str, value: str, inside: Set[str], cfg: Mapping[str, Any], typed: str = "") -> str:
    """The line for a key that does not exist, with the nearest one.

    value: as it is typed. inside: the keys of its node. cfg: the composition. typed: the key as it
    is typed, if it continues.
    """
    if full in REFUSED_KEYS:
        return f"no key {full}: {REFUSED_KEYS[full]}"
    path, _, key = full.rpartition(".")
    names = [f"{path}.{name}".lstrip(".") for name in sorted(inside - EVERYWHERE - ROOT)]
    others = {*ROOT, "study"} - {full.partition(".")[0]}
    known = [k for k in flatten(cfg) if k.partition(".")[0] not in others and k != full]
    settable = [*names, *(k for k in known if path and k.startswith(f"{path}.") and "._" not in k)]
    settable += [short for short, long in ALIASES.items() if long in settable]
    # A group of other models is not a typo.
    near = "" if full in groups() else suggest(typed or full, settable).removeprefix("; ")
    elsewhere = same_name(full, value, known)
    having = _options_with(path, key) if path else []
    hint = key_hint(full, value, known, groups())
    if having and f" {path}." not in elsewhere:  # unlike model.encoder.depth
        hint = f"it is a key of {', '.join(f'{path}={option}' for option in having[:4])}"
    elif having or not path:
        hint = hint or elsewhere
    hint = hint or near or elsewhere
    option = (cfg.get("choices") or {}).get(path)
    said = "; ".join(filter(None, [f"{path}={option}" if option else "", hint]))
    allowed = f"allowed: {', '.join(names)}" if names else "it has no keys to set"
    return f"no key {'' if path else 'or group '}{full}{said and f' ({said})'}; {allowed}"


def _options_with(group: str, key: str) -> list[str]:
    files = config_files(f"{group}/*.yaml") if group in groups() else []
    return [file.stem for file in files if key in option_content(file)[0]]


@cache
def keys_of(target: str) -> dict[str, set[str]]:
    """The keys of a class in the built-in YAML files, each with those of its node, such as
    {"encoder": {"depth"}}: none of a value, or of a node of any keys. Empty for a class in no
    file."""
    keys: dict[str, set[str]] = {}
    for path in config_files("*/*.yaml"):
        if f"_target_: {target}\n" not in path.read_text():
            continue
        content, defaults = option_content(path)
        prefix = f"/{path.parent.name}."
        slots = [slot for entry in defaults if isinstance(entry, dict) for slot in entry]
        named = [slot.removeprefix(prefix) for slot in slots if slot.startswith(prefix)]
        for key, value in [*content.items(), *dict.fromkeys([*named, *EVERYWHERE]).items()]:
            keys.setdefault(key, set()).update(value if isinstance(value, dict) else ())
    return keys


def default_of(path: str) -> Any:
    """The default of a key such as "study.seeds"; None of a key of another node."""
    node, _, key = path.partition(".")
    return _values()["study"].get(key) if node == "study" else None


@cache
def parts_in(group: str) -> tuple[dict[str, Any], ...]:
    """The content of every option of a group that is a part: that has a `_target_`. A node inside
    an option, such as optimizer.matrix, has its content there, then the options of its group."""
    if group not in groups() and "." in group:
        outer, _, name = group.rpartition(".")
        inner = [node for part in parts_in(outer) if isinstance(node := part.get(name), dict)]
        return (*(part for part in inner if "_target_" in part), *parts_in(outer))
    files = config_files(f"{group}/*.yaml")
    return tuple(part for file in files if "_target_" in (part := option_content(file)[0]))


@cache
def option_content(path: Path) -> tuple[dict[str, Any], list[Any]]:
    """The node of an option's file, fragments such as _block.yaml and options of the same
    group that it builds on included, and its defaults list."""
    text = path.read_text()
    content: dict[str, Any] = yaml.load(text, Loader=YamlLoader) or {}
    defaults = content.pop("defaults", [])
    if "@package _global_" in text:
        content = content.get(path.parent.name, {})
    for entry in defaults:
        if isinstance(entry, str) and entry != "_self_":
            base, _, node = entry.partition("@")
            name = base.strip("/") if base.startswith("/") else f"{path.parent.name}/{base}"
            inner = option_content(config_file(f"{name}.yaml"))[0]
            content = ({node: inner} if node not in ("", path.parent.name) else inner) | content
    return content, defaults


def base_constructor_arguments(target: str) -> frozenset[str]:
    """The arguments that the model passes to the built-in base of an external class."""
    part = locate(target)
    ours = [c for c in getattr(part, "__mro__", ()) if f"{c.__module__}.".startswith(OURS)]
    return frozenset(inspect.signature(ours[-1].__init__).parameters) if ours else frozenset()


def targets(node: Any, path: str = "") -> dict[str, str]:
    """The class or function of every node of a composition that names one, by the node's path."""
    found: dict[str, str] = {}
    for key, value in to_dict(node).items():
        if key == "_target_" and isinstance(value, str):
            found[path] = value
        elif isinstance(value, dict):
            found |= targets(value, f"{path}.{key}".lstrip("."))
    return found


def changed_keys(first: DictConfig, second: DictConfig) -> dict[str, tuple[Any, Any]]:
    """Map each differing key or group to its values or options on both sides; None if absent."""
    a, b = (flatten(OmegaConf.to_container(c, resolve=True)) for c in (first, second))
    for values in (a, b):  # the options of layers
        for name, value in values.items():
            if isinstance(value, list) and any(isinstance(item, dict) for item in value):
                values[name] = shown(value)
    names = [*a, *(name for name in b if name not in a)]
    return {
        name.removeprefix("choices."): (a.get(name), b.get(name))
        for name in names
        if a.get(name) != b.get(name) and not name.endswith("_target_")
    }


def shown(value: Any) -> str:
    """A value, or an option of a group with its keys, such as "window(size=8)"."""
    if isinstance(value, list):
        return f"[{', '.join(map(shown, value))}]"
    if not isinstance(value, Mapping) or "_target_" not in value:
        return value_text(value)
    target = str(value["_target_"])
    name = target.split(".")[-2] if target.startswith(OURS) else target
    keys = [f"{k}={shown(v)}" for k, v in value.items() if k not in EVERYWHERE]
    return f"{name}({', '.join(keys)})" if keys else name


def flatten(node: Any, prefix: str = "") -> dict[str, Any]:
    """Return the leaves of a nested dictionary by dotted key."""
    if not isinstance(node, dict):
        return {prefix: node}
    leaves: dict[str, Any] = {}
    for key, value in node.items():
        leaves |= flatten(value, f"{prefix}.{key}" if prefix else str(key))
    return leaves
