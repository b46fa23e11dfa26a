"""The names that a run's config may have: the run may be untrusted, and building it executes code.

A slot, such as model.attention, may contain the classes of built-in options, and of the libraries
below those of its kind. Anything else, and every value of the environment, must be allowed by the
user: `--allow MODULE`, `allow` of ablate.load, or ABLATE_ALLOW=MODULE,... . Names are compared
before anything is imported, since importing a module runs its code.
"""

import os
import re
from collections.abc import Collection, Iterator
from fnmatch import fnmatchcase
from functools import cache
from inspect import isclass
from itertools import chain
from typing import Any

from omegaconf import DictConfig, OmegaConf

from ablate.config.keys import option_content, targets
from ablate.config.layers import NODE, group_of
from ablate.config.parts import locate
from ablate.config.tree import config_files, groups
from ablate.errors import UserError

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
            if not (
                text in _options(slot) or _is_allowed(text, allowed) or _of_library(slot, text)
            ):
                lines.append(
                    f"{path}={text} is not an ablate component; loading it would run"
                    " third-party code"
                )
                words.append(text.rpartition(".")[0] or text)
        elif "${" in text:
            named = _ENVIRONMENT.findall(text)
            rest = _ENVIRONMENT.sub("", text)
            if "${" in rest or key == "_target_" or not allowed.issuperset(named):
                lines.append(
                    f"{path}={text} is an interpolation, which is not resolved in an"
                    " untrusted config"
                )
                words += named
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
    return frozenset(chain.from_iterable(targets(option_content(file)[0]) for file in files))


def _is_allowed(target: str, allowed: Collection[str]) -> bool:
    return any(f"{target}.".startswith(f"{word}.") for word in allowed)


def _of_library(slot: str, target: str) -> bool:
    base = next((base for slots, base in ALLOWED_BASES.items() if fnmatchcase(slot, slots)), None)
    if base is None or slot not in groups() or not target.startswith(LIBRARIES):
        return False
    located = locate(target)
    fits = isclass(located) and issubclass(located, locate(base))
    return fits and f"{located.__module__}.".startswith(LIBRARIES)  # Muon's is torch.optim itself
