"""What parts state about themselves: class attributes, read without importing torch.

A composition is checked before torch is imported. For parts of ours the value is taken from the
source of the class or of its bases; other people's parts are imported.
"""

import ast
from functools import cache
from pathlib import Path
from typing import Any

import ablate
from ablate.config.keys import OURS, locate

PACKAGE = Path(ablate.__file__).parent


class Unreadable(Exception):
    """A value or attribute that a rule reads is missing or invalid."""


@cache
def stated(target: str, attribute: str) -> Any:
    """The value of a class attribute. Raises Unreadable if there is none; UserError if somebody
    else's class cannot be imported."""
    module, _, name = target.rpartition(".")
    classes, imports = _read(module) if target.startswith(OURS) else ({}, {})
    if name in imports:
        return stated(imports[name], attribute)
    if name not in classes:
        part = locate(target)
        if not hasattr(part, attribute):
            raise Unreadable(attribute)
        return getattr(part, attribute)
    for statement in classes[name].body:
        if attribute in _assigned(statement):
            return ast.literal_eval(statement.value)  # type: ignore[attr-defined]
    for base in classes[name].bases:
        if isinstance(base, ast.Name):
            inherited = imports.get(base.id, f"{module}.{base.id}")
            try:
                if inherited.startswith(OURS):
                    return stated(inherited, attribute)
            except Unreadable:
                continue
    raise Unreadable(attribute)


def _assigned(statement: ast.stmt) -> list[str]:
    """The names to which a statement assigns a value."""
    if isinstance(statement, ast.Assign):
        targets = statement.targets
    elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
        targets = [statement.target]
    else:
        targets = []
    return [target.id for target in targets if isinstance(target, ast.Name)]


@cache
def _read(module: str) -> tuple[dict[str, ast.ClassDef], dict[str, str]]:
    """The classes that a module defines, and the full path of every name that it imports from
    elsewhere; nothing of a module that is not in our package."""
    path = PACKAGE.joinpath(*module.split(".")[1:])
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    if not file.is_file():
        return {}, {}
    body = ast.parse(file.read_text(encoding="utf-8")).body
    classes = {node.name: node for node in body if isinstance(node, ast.ClassDef)}
    imports = {
        alias.asname or alias.name: f"{node.module}.{alias.name}"
        for node in body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    return classes, imports
