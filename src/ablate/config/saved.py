"""Read the config.yaml of a run, which may be damaged or untrusted: building it executes code.

A slot, such as model.attention, may contain the classes of built-in options, and of the libraries
below those of its kind. Anything else, and every value of the environment, must be allowed by the
user: `--allow MODULE`, `allow` of ablate.load, or ABLATE_ALLOW=MODULE,... . Names are compared
before anything is imported, since importing a module runs its code.
"""

import os
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from functools import cache
from inspect import isclass
from io import StringIO
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf

from ablate.config.check import wrong_values
from ablate.config.keys import option_content, targets, to_dict
from ablate.config.layers import NODE, group_of
from ablate.config.parts import locate
from ablate.config.run_id import counted_keys, digest
from ablate.config.tree import config_files, groups
from ablate.errors import UserError
from ablate.run_files import CorruptFile, read_mapping, read_text
from ablate.run_files.shape import schema_error

LONGEST = 1 << 20  # bytes of a config
PART = {"_target_": str}
PARTS = ("data", "task", "model", "pos_enc", "optimizer", "schedule", "kernel")
NODES = {
    "seed": int,
    **dict.fromkeys(PARTS, PART),
    "trainer": {"precision": str},
    "study": {"name": (str, int, float)},
    "choices?": {"model?": str, "data?": str, "task?": str},
}
ALLOWED = "ABLATE_ALLOW"  # environment variable: modules, separated by commas
# Slot -> base class of its classes from LIBRARIES, in addition to those of built-in options.
ALLOWED_BASES = {"optimizer": "torch.optim.Optimizer", "model.*": "torch.nn.Module"}
LIBRARIES = (
    "torch.nn.",
    "torch.optim.",
    "torchvision.models.",
    "torchvision.ops.",
    "timm.layers.",
    "timm.models.",
    "timm.optim.",
)
_BY_LAYER = re.compile(rf"{re.escape(NODE)}\.(\w+)\[\d+\]")
_ENVIRONMENT = re.compile(r"\$\{(oc\.env:\w+)\}")


def read_config(path: Path, allow: Collection[str] = ()) -> DictConfig:
    """Read a config; raise UserError if it is not that of a run, was edited since its training, or
    names code or values of the environment that nobody allowed."""
    with names_file(path):
        config = read_yaml(path)
        _leave_out(config, allow)
        require_trusted(config, allow)
        values = to_dict(config)
        lines = [schema_error(values, NODES)]
        if wrong := next(filter(None, [*lines, *wrong_values(values).values()]), None):
            raise UserError(wrong)
        require_unedited(path, config)
    return config


def counted(config: DictConfig) -> str:
    """Return a hash of the values of a saved config that its run's id counts, as they are written:
    nothing that an untrusted config names is imported. Nodes that `read_config` may leave out do
    not count."""
    values: Any = OmegaConf.to_container(config, resolve=False)
    return digest(counted_keys({**values, "callbacks": None}), "", {})


def require_unedited(path: Path, config: DictConfig) -> None:
    """Raise UserError if the config at `path` has other values than when its run was trained."""
    trained = read_mapping(path.with_name("provenance.json")).get("config")
    if trained not in (None, counted(config)):
        raise UserError("it was edited since its run was trained; put the values back")


def _leave_out(config: DictConfig, allow: Collection[str]) -> None:
    """Leave out loggers and callbacks that name code that nobody allowed: no reader builds them."""
    for name in ("logger", "callbacks"):
        if config.get(name) is None:
            continue
        try:
            require_trusted(OmegaConf.create({name: config[name]}), allow)
        except UserError:
            config[name] = None


def read_yaml(path: Path) -> DictConfig:
    """Read a mapping; raise UserError for aliases: a few lines of them make billions of values."""
    text = read_text(path, longest=LONGEST)
    if "&" in text and "*" in text:
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            if isinstance(event, yaml.AliasEvent):
                raise UserError(f"it has the alias *{event.anchor}, and no run writes aliases")
    config = OmegaConf.load(StringIO(text))
    if not isinstance(config, DictConfig):
        raise UserError("it is not a mapping")
    return config


class Unusable(UserError):
    """An error in the content of a file that it names."""


@contextmanager
def names_file(path: Path) -> Iterator[None]:
    """Turn an error in the content of a file, here or when a run is rebuilt from it, into a
    UserError that names the file."""
    try:
        yield
    except Exception as error:
        named = isinstance(error, CorruptFile | Unusable)
        if named or (isinstance(error, OSError) and error.filename):
            raise  # it names its file; OmegaConf raises an OSError without
        ours = isinstance(error, UserError)
        kind = "" if ours else f"{type(error).__name__}: "
        more = "" if ours else " (HYDRA_FULL_ERROR=1 prints the traceback)"
        line = " ".join(str(error).split())
        cause = None if ours else error
        raise Unusable(f"{path} cannot be used: {kind}{line}{more}") from cause


def require_trusted(config: DictConfig, allow: Collection[str]) -> None:
    """Raise UserError that names everything in a saved config that the user must allow.

    allow: modules, classes, or oc.env:NAME, in addition to those in ABLATE_ALLOW.
    """
    allowed = {*allow, *filter(None, os.environ.get(ALLOWED, "").split(","))}
    lines: list[str] = []
    words: list[str] = []
    for path, text in _texts(OmegaConf.to_container(config, resolve=False)):
        slot, _, key = path.rpartition(".")
        if by_layer := _BY_LAYER.fullmatch(slot):
            slot = group_of(by_layer[1]) or slot
        elif slot.startswith("optimizer."):  # a rule of ablate.optimizer.ByRole
            slot = "optimizer"
        if key == "_target_" and "${" not in text:
            named = any(f"{text}.".startswith(f"{word}.") for word in allowed)
            if not (named or text in _options(slot) or _of_library(slot, text)):
                lines.append(
                    f"{path}={text} is not an ablate component; loading it would run"
                    " third-party code"
                )
                words.append(text.rpartition(".")[0] or text)
        elif "${" in text:
            variables = _ENVIRONMENT.findall(text)
            rest = _ENVIRONMENT.sub("", text)
            if "${" in rest or key == "_target_" or not allowed.issuperset(variables):
                lines.append(
                    f"{path}={text} is an interpolation, which is not resolved in an"
                    " untrusted config"
                )
                words += variables
    if lines:
        needed = sorted(set(words) - allowed)
        way = " ".join(f"--allow {word}" for word in needed)
        # ablate.report, whose --allow is of rules, and init_from= have no such option.
        trusted = (
            f"; to allow it: {way} (Python: allow={needed}; ablate.report, init_from: set"
            f" {ALLOWED}={','.join(needed)})"
        )
        raise UserError("; ".join(lines) + (trusted if needed else ""))


def _texts(node: Any, path: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(node, dict):
        for key, value in node.items():
            yield from _texts(value, f"{path}.{key}".lstrip("."))
    elif isinstance(node, list):
        for number, value in enumerate(node):
            yield from _texts(value, f"{path}[{number}]")
    elif isinstance(node, str):
        yield path, node


@cache
def _options(slot: str) -> frozenset[str]:
    """Return the classes of built-in options for a slot, and for the slots within."""
    files = config_files(f"{slot}/*.yaml") if slot in groups() else ()
    return frozenset(t for file in files for t in targets(option_content(file)[0]).values())


def _of_library(slot: str, target: str) -> bool:
    base = next((base for slots, base in ALLOWED_BASES.items() if fnmatchcase(slot, slots)), None)
    if base is None or slot not in groups() or not target.startswith(LIBRARIES):
        return False
    located = locate(target)
    fits = isclass(located) and issubclass(located, locate(base))
    return fits and f"{located.__module__}.".startswith(LIBRARIES)  # Muon's is torch.optim itself
