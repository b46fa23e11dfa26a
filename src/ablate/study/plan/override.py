"""Override strings, `key=value`, that Hydra parses to the values they were made from."""

import re
from collections.abc import Iterable
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, Quote, QuotedString
from hydra.errors import HydraException

from ablate.errors import UserError

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*")
_NOT_TEXT = {"null", "true", "false", "inf", "nan"}  # where they stand without quotes


def parse(text: object, where: str) -> Override:
    """Parse one override with one value; raise a UserError that begins with `where` otherwise."""
    try:
        override = OverridesParser.create().parse_overrides([str(text)])[0]
    except HydraException as error:
        reason = " ".join(str(error).split("\nSee https")[0].split())
        raise UserError(f"{where}: cannot read '{text}' ({reason}); write KEY=VALUE") from error
    if override.is_sweep_override():
        raise UserError(f"{where}: '{text}' names several values, and one is needed here")
    return override


def key_of(text: str) -> str:
    """Return the key of an override: `model.heads` of `++model.heads=4`."""
    return text.partition("=")[0].lstrip("+~")


def merged(*groups: Iterable[str]) -> tuple[str, ...]:
    """Merge overrides; of those that set the same key, keep the last."""
    found: dict[str, str] = {}
    for text in (text for group in groups for text in group):
        found.pop(key_of(text), None)
        found[key_of(text)] = text
    return tuple(found.values())


def value_text(value: Any) -> str:
    """Write a value as in an override, after `key=`."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, str):
        plain = _PLAIN.fullmatch(value) and value.lower() not in _NOT_TEXT
        return value if plain else quoted(value)
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{value_text(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(value_text, value)) + "]"
    return str(value)


def quoted(text: str) -> str:
    return QuotedString(text=text, quote=Quote.single).with_quotes()


def equal(one: Any, other: Any) -> bool:
    """Whether two values of a key are the same: 1 and 1.0 are, 1 and true are not."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(equal, one, other))
    return bool(one == other)
