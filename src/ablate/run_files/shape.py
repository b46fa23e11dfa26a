"""The shape of values that were read from a file: types, and the keys of mappings."""

from collections.abc import Iterator, Mapping
from types import NoneType
from typing import Any

WORDS = {
    str: "a text",
    int: "an integer",
    float: "a number",
    bool: "true or false",
    dict: "a mapping",
    list: "a list",
    NoneType: "null",
}
WIDER: dict[type, Any] = {dict: Mapping, float: (int, float)}


def schema_error(value: Any, shape: Any, path: str = "") -> str | None:
    """Return the error of a value, such as "steps is not a number"; None if it has the shape.

    shape: a type; a frozenset of strings; a tuple of alternative shapes; [the shape of every item];
    {str: the shape of every value}; or {key: shape}; a key that ends in "?" may be missing.
    """
    if isinstance(shape, frozenset):
        allowed = isinstance(value, str) and value in shape
        return None if allowed else f"{path or 'it'} is not {' or '.join(sorted(shape))}"
    if isinstance(shape, tuple):
        misfits = [schema_error(value, item, path) for item in shape]
        return None if None in misfits else misfits[0]
    inside = isinstance(shape, list | dict)
    kind = type(shape) if inside else shape
    flag = isinstance(value, bool) and kind in (int, float)
    if flag or not isinstance(value, WIDER.get(kind, kind)):
        return f"{path or 'it'} is not {WORDS.get(kind, kind.__name__)}"
    return next(filter(None, _errors_inside(value, shape, path)), None) if inside else None


def _errors_inside(value: Any, shape: Any, path: str) -> Iterator[str | None]:
    """The error of each item of a list, or of each value of a mapping, if it has one."""
    prefix = f"{path}." if path else ""
    if isinstance(shape, list):
        for number, item in enumerate(value):
            yield schema_error(item, shape[0], f"{path}[{number}]")
    elif str in shape:
        for key, item in value.items():
            if isinstance(key, str):
                yield schema_error(item, shape[str], f"{prefix}{key}")
            else:
                yield f"the key {prefix}{key} is not a text"
    else:
        for key, inner in shape.items():
            name = key.removesuffix("?")
            if name in value:
                yield schema_error(value[name], inner, f"{prefix}{name}")
            elif key == name:
                yield f"it has no {prefix}{name}"
