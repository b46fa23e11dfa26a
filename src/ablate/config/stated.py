"""What parts state about themselves: class attributes, read without importing torch.

A composition is checked before torch is imported. For parts of ours the value is taken from the
source of the class or of its bases; other people's parts are imported.
"""

import ast
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import ablate
from ablate.config.keys import OURS, locate

PACKAGE = Path(ablate.__file__).parent


class Unreadable(Exception):
    """A value or attribute that a rule reads is missing or invalid."""


@cache
def stated(target: str, attribute: str) -> Any:
    """The value of a class attribute. Raises Unreadable if there is none; UserError if somebody
    else's class cannot be imported."""
    for value in declared(target, attribute):
        return value
    raise Unreadable(attribute)


def declared(target: str, attribute: str) -> Iterator[Any]:
    """The values that a class and its bases give an attribute, its own first; or a function."""
    module, _, name = target.rpartition(".")
    source = _read(module) if target.startswith(OURS) else Source()
    if name in source.imports:
        yield from declared(source.imports[name], attribute)
    elif name in source.attributes:
        if attribute in source.attributes[name]:
            yield ast.literal_eval(source.attributes[name][attribute])
        for base in source.bases.get(name, ()):
            if (inherited := source.imports.get(base, f"{module}.{base}")).startswith(OURS):
                yield from declared(inherited, attribute)
    else:
        part = locate(target)
        for owner in getattr(part, "__mro__", [part]):
            own = getattr(owner, "__dict__", {})
            if attribute in own:
                yield own[attribute]


class Source(NamedTuple):
    """What a module of ours holds: the attributes that its classes and functions are given, the
    bases of its classes, and the full path of every name that it imports from elsewhere."""

    attributes: dict[str, dict[str, ast.expr]] = {}
    bases: dict[str, list[str]] = {}
    imports: dict[str, str] = {}


@cache
def _read(module: str) -> Source:
    """Nothing of a module that is not in our package."""
    path = PACKAGE.joinpath(*module.split(".")[1:])
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    found = Source({}, {}, {})
    if not file.is_file():
        return found
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef):
            found.attributes[node.name] = dict(_assigned(node.body))
            found.bases[node.name] = [b.id for b in node.bases if isinstance(b, ast.Name)]
        elif isinstance(node, ast.FunctionDef):
            found.attributes[node.name] = {}
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                found.imports[alias.asname or alias.name] = f"{node.module}.{alias.name}"
        else:
            for name, value in _assigned([node]):
                owner, _, attribute = name.partition(".")
                found.attributes.get(owner, {})[attribute] = value
    return found


def _assigned(statements: Sequence[ast.stmt]) -> Iterator[tuple[str, ast.expr]]:
    """The names to which statements assign, such as "x" or "x.y", with the values."""
    for statement in statements:
        targets = statement.targets if isinstance(statement, ast.Assign) else []
        if isinstance(statement, ast.AnnAssign) and statement.value is not None:
            targets = [statement.target]
        for target in targets:
            if isinstance(target, ast.Name | ast.Attribute):
                yield ast.unparse(target), statement.value  # type: ignore[attr-defined]
