"""The shape of values that were read from a file: types, and the keys of mappings."""

from collections.abc import Mapping
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
    if isinstance(shape, list):
        if not isinstance(value, list):
            return _mismatch(list, path)
        return _first(schema_error(item, shape[0], f"{path}[{n}]") for n, item in enumerate(value))
    if isinstance(shape, dict):
        if not isinstance(value, Mapping):
            return _mismatch(dict, path)
        if str in shape:
            return _first(_item(key, item, shape[str], path) for key, item in value.items())
        return _first(_key(value, key, inner, path) for key, inner in shape.items())
    if shape in (int, float) and isinstance(value, bool):
        return _mismatch(shape, path)
    return (
        None
        if isinstance(value, (int, float) if shape is float else shape)
        else _mismatch(shape, path)
    )


def _item(key: Any, value: Any, shape: Any, path: str) -> str | None:
    if not isinstance(key, str):
        return f"the key {_joined(path, key)} is not a text"
    return schema_error(value, shape, _joined(path, key))


def _key(value: Mapping[str, Any], key: str, shape: Any, path: str) -> str | None:
    name = key.removesuffix("?")
    if name in value:
        return schema_error(value[name], shape, _joined(path, name))
    return None if key != name else f"it has no {_joined(path, name)}"


def _joined(path: str, key: Any) -> str:
    return f"{path}.{key}" if path else str(key)


def _mismatch(kind: type, path: str) -> str:
    return f"{path or 'it'} is not {WORDS.get(kind, kind.__name__)}"


def _first(misfits: Any) -> str | None:
    return next(filter(None, misfits), None)
