"""The shape of what is read from a file: types, and the keys of mappings."""

from collections.abc import Mapping
from types import NoneType
from typing import Any

WORDS = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    dict: "a mapping",
    list: "a list",
    NoneType: "null",
}


def misfit(value: Any, shape: Any, place: str = "") -> str | None:
    """Return where a value has another shape, such as "steps is not a number"; None if it fits.

    shape: a type; a tuple of shapes, one of which must fit; [the shape of every item];
    {str: the shape of every value}; or {key: shape}, where a key that ends in "?" may be missing.
    """
    if isinstance(shape, tuple):
        found = [misfit(value, one, place) for one in shape]
        return None if None in found else found[0]
    if isinstance(shape, list):
        if not isinstance(value, list):
            return _no(list, place)
        return _first(misfit(one, shape[0], f"{place}[{n}]") for n, one in enumerate(value))
    if isinstance(shape, dict):
        if not isinstance(value, Mapping):
            return _no(dict, place)
        if str in shape:
            return _first(_item(key, one, shape[str], place) for key, one in value.items())
        return _first(_key(value, key, inner, place) for key, inner in shape.items())
    if shape in (int, float) and isinstance(value, bool):
        return _no(shape, place)
    return (
        None if isinstance(value, (int, float) if shape is float else shape) else _no(shape, place)
    )


def _item(key: Any, value: Any, shape: Any, place: str) -> str | None:
    if not isinstance(key, str):
        return f"the key {_in(place, key)} is not a text"
    return misfit(value, shape, _in(place, key))


def _key(value: Mapping[str, Any], key: str, shape: Any, place: str) -> str | None:
    name = key.removesuffix("?")
    if name in value:
        return misfit(value[name], shape, _in(place, name))
    return None if key != name else f"it has no {_in(place, name)}"


def _in(place: str, key: Any) -> str:
    return f"{place}.{key}" if place else str(key)


def _no(kind: type, place: str) -> str:
    return f"{place or 'it'} is not {WORDS.get(kind, kind.__name__)}"


def _first(found: Any) -> str | None:
    return next(filter(None, found), None)
