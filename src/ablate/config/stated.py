"""Facts that components state about themselves: class attributes, and the annotations of
parameters.

A composition is checked before torch is imported. For built-in components both are taken from the
source of the class or of its bases; other people's parts are imported.

The rule of a value is the annotation of its parameter: `size: Annotated[int, Int(1)]`, or a
name for it such as `Count` (rules.py), `layout: Literal["half", "interleaved"]`. In a built-in
component a plain int, float, bool or str is a rule too. Third-party annotations are narrower than
their code, so that of theirs only a Rule and a Literal count.
"""

import ast
import collections.abc
import inspect
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

from ablate.config.keys import OURS, locate
from ablate.config.rules import OF_TYPE, Either, Exactly, KeysOf, ListOf, OneOf, Rule
from ablate.version import PACKAGE


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
    """The values of an attribute in a class and its bases, its own first; or a function."""
    module, _, name = target.rpartition(".")
    source = _read(module) if target.startswith(OURS) else Source()
    if name in source.imports:
        yield from declared(source.imports[name], attribute)
    elif name in source.attributes:
        if attribute in source.attributes[name]:
            yield _value(module, name, attribute)
        for base in source.bases.get(name, ()):
            if (inherited := source.imports.get(base, f"{module}.{base}")).startswith(OURS):
                yield from declared(inherited, attribute)
    else:
        part = locate(target)
        for owner in getattr(part, "__mro__", [part]):
            attributes = getattr(owner, "__dict__", {})
            if attribute in attributes:
                yield attributes[attribute]


@cache
def _value(module: str, name: str, attribute: str) -> Any:
    expression = ast.Expression(_read(module).attributes[name][attribute])
    return eval(compile(expression, module, "eval"), _Names(module))


@cache
def parameter_rules(target: str | type[Any]) -> Mapping[str, Rule]:
    """The rule of every parameter of a class or function that states one; those of keys inside of
    it have names such as "encoder.depth". Raises UserError if it cannot be imported."""
    hints: dict[str, Any] = {}
    for annotations, ours in _signatures(target):
        hints = {
            name: hint for name, hint in annotations.items() if ours or _is_stated(hint)
        } | hints
    rules: dict[str, Rule] = {}
    for name, hint in hints.items():
        if further := _further(hint):
            rules |= {f"{name}.{key}": rule for key, rule in parameter_rules(further).items()}
        elif rule := _rule(hint):
            rules[name] = rule
    return rules


FURTHER = "**"  # of a signature: the parameter that takes further keys


def _signatures(target: str | type[Any]) -> Iterator[tuple[dict[str, Any], bool]]:
    """The annotations of a function, or of the constructors of a class and its bases, and of those
    that their ** goes to; each with whether it is ours."""
    if not isinstance(target, str):
        yield from _of_others(target)
        return
    module, _, name = target.rpartition(".")
    source = _read(module) if target.startswith(OURS) else Source()
    if name in source.imports:
        yield from _signatures(source.imports[name])
    elif name in source.attributes:
        annotations = source.parameters.get(name, {})
        hints = {key: _evaluated(text, _Names(module)) for key, text in annotations.items()}
        further = _further(hints.pop(FURTHER, None))
        yield hints, True
        if further:
            yield from _signatures(further)
        for base in source.bases.get(name, ()):
            if (inherited := source.imports.get(base, f"{module}.{base}")).startswith(OURS):
                yield from _signatures(inherited)
    else:
        yield from _of_others(locate(target))


def _of_others(part: Any) -> Iterator[tuple[dict[str, Any], bool]]:
    if not callable(part):  # a module: a schedule was a function of that name once
        return
    for owner in getattr(part, "__mro__", [part]):
        module, name = owner.__module__, owner.__qualname__
        if module.startswith(OURS) and name in _read(module).attributes:
            yield from _signatures(f"{module}.{name}")
            return
        callable_ = vars(owner).get("__init__") if inspect.isclass(owner) else owner
        if not inspect.isfunction(callable_):
            continue
        kinds = inspect.signature(callable_).parameters.values()
        hints = {kind: _evaluated(kind.annotation, callable_.__globals__) for kind in kinds}
        yield {kind.name: hints[kind] for kind in kinds if kind.kind != kind.VAR_KEYWORD}, False
        for kind in kinds:
            if kind.kind == kind.VAR_KEYWORD and (further := _further(hints[kind])):
                yield from _signatures(further)


class _Names(dict[str, Any]):
    """The names of an ablate module that its rules and its classes' statements use: those
    it assigns a value, and those it imports that need no torch."""

    def __init__(self, module: str) -> None:
        self.module = module

    def __missing__(self, name: str) -> Any:
        source = _read(self.module)
        if name in source.names:
            return eval(compile(ast.Expression(source.names[name]), self.module, "eval"), self)
        module, _, _ = (origin := source.imports.get(name, "")).rpartition(".")
        if module in ("typing", "collections.abc", "ablate.config.rules", "ablate.config.facts"):
            return locate(origin)
        if module.startswith(OURS):
            return _Names(module)[name]
        raise KeyError(name)


def _evaluated(annotation: Any, names: Mapping[str, Any]) -> Any:
    """None for what only torch, or whoever checks types, knows."""
    if not isinstance(annotation, str):
        return annotation
    try:
        return eval(annotation, {}, names)
    except (NameError, AttributeError, TypeError, SyntaxError):
        return None


def _further(hint: Any) -> str | None:
    marks = getattr(hint, "__metadata__", ())
    return next((mark.target for mark in marks if isinstance(mark, KeysOf)), None)


def _rule(hint: Any) -> Rule | None:
    """The rule of a type; None for one that does not restrict values of a config."""
    origin, inside = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return next((mark for mark in hint.__metadata__ if isinstance(mark, Rule)), None)
    if origin is Literal:
        return OneOf(inside) if all(isinstance(value, str) for value in inside) else None
    if origin in (Union, UnionType):
        rules = [_rule(kind) for kind in inside]
        return None if None in rules else Either(tuple(rule for rule in rules if rule))
    if origin in (list, collections.abc.Sequence):
        item = _rule(inside[0])
        return item and ListOf(item)
    return Exactly(None) if hint is NoneType else OF_TYPE.get(hint)


def _is_stated(hint: Any) -> bool:
    """Whether a type restricts values: has a Rule or a Literal."""
    if get_origin(hint) in (Annotated, Literal):
        return True
    return any(_is_stated(kind) for kind in get_args(hint))


class Source(NamedTuple):
    """The content of an ablate module: the attributes that its classes and functions are given, the
    parameters of these with their annotations, the bases of its classes, the values of its names,
    and the full path of every name that it imports from elsewhere."""

    attributes: dict[str, dict[str, ast.expr]] = {}
    parameters: dict[str, dict[str, str]] = {}
    bases: dict[str, list[str]] = {}
    names: dict[str, ast.expr] = {}
    imports: dict[str, str] = {}


@cache
def _read(module: str) -> Source:
    """Nothing of a module that is not in our package."""
    path = PACKAGE.joinpath(*module.split(".")[1:])
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    source = Source({}, {}, {}, {}, {})
    if not file.is_file():
        return source
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef):
            source.attributes[node.name] = dict(_assigned(node.body))
            source.bases[node.name] = [b.id for b in node.bases if isinstance(b, ast.Name)]
            if (parameters := _of_class(node)) is not None:
                source.parameters[node.name] = parameters
        elif isinstance(node, ast.FunctionDef):
            source.attributes[node.name] = {}
            source.parameters[node.name] = _of_function(node)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                source.imports[alias.asname or alias.name] = f"{node.module}.{alias.name}"
        else:
            for name, value in _assigned([node]):
                owner, _, attribute = name.partition(".")
                source.names[name] = value
                source.attributes.get(owner, {})[attribute] = value
    return source


def _of_class(node: ast.ClassDef) -> dict[str, str] | None:
    """The parameters of a class's own constructor, or of a dataclass; None if it has none."""
    for function in node.body:
        if isinstance(function, ast.FunctionDef) and function.name == "__init__":
            return _of_function(function)
    if any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list):
        fields = [field for field in node.body if isinstance(field, ast.AnnAssign)]
        return {ast.unparse(field.target): ast.unparse(field.annotation) for field in fields}
    return None


def _of_function(node: ast.FunctionDef) -> dict[str, str]:
    every = {a.arg: a for a in [*node.args.args, *node.args.kwonlyargs]}
    if node.args.kwarg:
        every[FURTHER] = node.args.kwarg
    named = {name: argument.annotation for name, argument in every.items()}
    return {name: ast.unparse(hint) if hint else "None" for name, hint in named.items()}


def _assigned(statements: Sequence[ast.stmt]) -> Iterator[tuple[str, ast.expr]]:
    """The names to which statements assign, such as "x" or "x.y", with the values."""
    for statement in statements:
        targets = statement.targets if isinstance(statement, ast.Assign) else []
        if isinstance(statement, ast.AnnAssign) and statement.value is not None:
            targets = [statement.target]
        for target in targets:
            if isinstance(target, ast.Name | ast.Attribute):
                yield ast.unparse(target), statement.value  # type: ignore[attr-defined]
