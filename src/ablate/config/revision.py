"""Revisions of components, which tell runs with the same config apart.

Whoever changes the numbers that a component computes, but none of its keys, raises the part's
revision: the class attribute `revision`, or that of a function; 1 without one. A class also counts
the revisions of its bases, so that of a layer can be set in the models that have it.

Revisions above 1 count in the id of a run (run_id.py): the same command then trains again, and does
not answer with the result of the old code.
"""

from collections.abc import Mapping
from typing import Any

from ablate.config.keys import keys_of
from ablate.config.parts import OURS, class_attributes
from ablate.errors import UserError


def revisions(content: Mapping[str, Any], path: str = "") -> dict[str, int]:
    """The revision of every part of a config's plain content, those above 1."""
    numbers: dict[str, int] = {}
    for name, value in content.items():
        key = f"{path}.{name}".lstrip(".")
        if isinstance(value, Mapping):
            numbers |= revisions(value, key)
        elif name == "_target_":
            numbers[path] = revision(value)
    return {key: number for key, number in numbers.items() if number > 1}


def revision(target: str) -> int:
    """The revision of a class or function; 1 for those of other packages that our options name."""
    if not target.startswith(OURS) and keys_of(target):
        return 1
    try:
        return 1 + sum(number - 1 for number in class_attributes(target, "revision"))
    except UserError:  # cannot be imported: nothing is trained
        return 1
