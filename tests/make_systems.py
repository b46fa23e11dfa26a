"""The rows that a system adds to tables of the tests, in tests/systems/NAME/rows.py, and what such
rows have in common."""

import re
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from ablate.machine.version import PACKAGE

# The systems that pages link and that are not in this checkout: each can be removed.
INDEX = Path(__file__).parents[1] / "docs/index.md"  # a copy of the tests may be without docs
LINKED = {*re.findall(r"src/ablate/systems/(\w+)/", INDEX.read_text() if INDEX.exists() else "")}
REMOVED = {name for name in LINKED if not (PACKAGE / "systems" / name).is_dir()}

BLOCKS: dict[str, Any] = {
    "dim": 12,
    "heads": 3,
    "depth": 2,
    "mixer": "attention",
    "attention": "scaled_dot",
    "normalizer": "softmax",
    "mask": "none",
    "pos_enc": "none",
    "kernel": "reference",
}
CAPTIONS = {"image_size": (12, 24), "channels": 1, "target_vocab": 11, "target_length": 5}
DECODER = {"dim": 12, "attention": "additive", "normalizer": "softmax", "kernel": "reference"}
COUNTS = {"train_examples": 8, "val_examples": 4, "test_examples": 4, "batch_size": 4}
DIGITS = COUNTS | {"height": 8, "width": 24, "min_digits": 1, "max_digits": 2}


class Tiny(NamedTuple):
    """A small model, and what is tried with it."""

    data: str  # its default
    overrides: tuple[str, ...]
    sometimes: dict[str, list[Any]]
    own: dict[str, list[Any]] = {}  # other options of an axis


@cache
def systems() -> list[ModuleType]:
    folders = sorted(Path(__file__).parent.glob("systems/*/"))
    names = [folder.name for folder in folders if (PACKAGE / "systems" / folder.name).is_dir()]
    return [import_module(f"systems.{name}.rows") for name in names]


def rows_of_systems(table: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for system in systems():
        found |= getattr(system, table, {})
    return found


def list_of_systems(table: str) -> list[Any]:
    return [row for system in systems() for row in getattr(system, table, [])]
