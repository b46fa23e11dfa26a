"""Declarations of a component: its class attributes, and the rules of its parameters.

The rule of a value is the annotation of its parameter: `size: Annotated[int, Int(1)]`, or a
name for it such as `Count` (rules.py), `layout: Literal["half", "interleaved"]`. In a built-in
component a plain int, float, bool or str is a rule too. Third-party annotations are narrower than
their code, so that of theirs only a Rule and a Literal count.
"""

import collections.abc
import inspect
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from types import NoneType, SimpleNamespace, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    NotRequired,
    Union,
    Unpack,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from ablate.config.rules import NULL, OF_TYPE, Either, ListOf, OneOf, Rule, refusal
from ablate.errors import UserError, ended_by
from ablate.machine.version import extra_with, install

OURS = "ablate."


class Unreadable(Exception):
    """A value or attribute that a rule reads is missing or wrong."""


def locate(target: str) -> Any:
    """Import the class or function of a dotted path; raise UserError if that fails."""
    module, _, name = target.rpartition(".")
    try:
        return getattr(import_module(module), name)
    except (Exception, SystemExit) as error:  # of a person's own file: any
        known = isinstance(error, ImportError | AttributeError | TypeError | ValueError)
        why = str(error) if known else f"{type(error).__name__}: {error}"
        if isinstance(error, SystemExit):
            why = ended_by(error) or why
        line = f"_target_={target}: cannot be imported ({why})"
        top = module.partition(".")[0]
        missing = isinstance(error, ModuleNotFoundError) and error.name == top
        if missing and (extra := extra_with(top)):
            line += f": {install(extra)}"
        elif missing:
            line += (
                f"; run the command in the directory that contains {top} (the current one is"
                f" {Path.cwd()}), or add that directory to PYTHONPATH"
            )
        raise UserError(line) from error


def class_attribute(target: str, name: str) -> Any:
    """The value of a class attribute. Raises Unreadable if there is none; UserError if the class
    cannot be imported."""
    try:
        return getattr(locate(target), name)
    except AttributeError:
        raise Unreadable(name) from None


def class_attributes(target: str, name: str) -> Iterator[Any]:
    """The values of an attribute in a class and its bases, its own first; or of a function."""
    part = locate(target)
    for owner in getattr(part, "__mro__", [part]):
        attributes = getattr(owner, "__dict__", {})
        if name in attributes:
            yield attributes[name]


class Parameters(NamedTuple):
    """names: of the keys that a class or function is constructed with, "**" if it takes any.
    rules: of those that declare one; keys inside of a key have names such as "encoder.depth"."""

    names: frozenset[str]
    rules: Mapping[str, Rule]


@cache
def parameters(target: str | type[Any]) -> Parameters:
    """Raises UserError if it cannot be imported.

    A constructor with **kwargs passes them to its base class, whose parameters count too.
    """
    names, hints = {"**"}, dict[str, Any]()
    for owner, function in constructors(locate(target) if isinstance(target, str) else target):
        ours = f"{owner.__module__}.".startswith(OURS)
        declared = {k: h for k, h in _hints(function).items() if ours or _is_declared(h)}
        hints = declared | hints
        if "**" in names:
            kinds = inspect.signature(function).parameters.values()
            names |= {p.name for p in kinds if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)}
            if all(p.kind != p.VAR_KEYWORD for p in kinds):
                names.remove("**")
    # Positional arguments (self, the optimizer's parameters) are not keys.
    return Parameters(frozenset(names - {"self", "params"}), _rules(hints))


def rules_of(typed_dict: Any) -> dict[str, Rule]:
    """The rule of every key of a TypedDict, and of those in it."""
    return _rules(_keys(typed_dict))


def require_allowed(part: Any, values: Mapping[str, Any], path: str) -> None:
    """Raise UserError for a value that the annotation of its parameter does not allow. path: of the
    part in a configuration."""
    rules = parameters(part).rules
    for key, value in values.items():
        if key in rules and not rules[key].allows(value):
            raise UserError(refusal(f"{path}.{key}", value, rules[key]))


def _rules(hints: Mapping[str, Any]) -> dict[str, Rule]:
    rules: dict[str, Rule] = {}
    for name, hint in hints.items():
        if is_typeddict(hint):
            rules |= {f"{name}.{key}": rule for key, rule in rules_of(hint).items()}
        elif rule := _rule(hint):
            rules[name] = rule
    return rules


def constructors(part: Any) -> Iterator[tuple[Any, Any]]:
    """A class and its bases, each with its own constructor; a function twice."""
    for owner in getattr(part, "__mro__", [part]):
        function = vars(owner).get("__init__") if inspect.isclass(owner) else owner
        if inspect.isfunction(function):
            yield owner, function


def _hints(function: Any) -> dict[str, Any]:
    """The annotations of the parameters, those of `**keys: Unpack[Keys]` among them; without those
    with names that only a type checker knows."""
    hints: dict[str, Any] = {}
    for name, annotation in function.__annotations__.items():
        one = SimpleNamespace(__annotations__={name: annotation})
        with suppress(NameError, AttributeError, TypeError, SyntaxError):
            hints |= get_type_hints(one, function.__globals__, include_extras=True)
    for name, hint in [*hints.items()]:
        if get_origin(hint) is Unpack:
            del hints[name]
            hints |= _keys(*get_args(hint))
    return hints


def _keys(typed_dict: Any) -> dict[str, Any]:
    """The annotations of a TypedDict."""
    hints = get_type_hints(typed_dict, include_extras=True)
    return {k: get_args(h)[0] if get_origin(h) is NotRequired else h for k, h in hints.items()}


def _rule(hint: Any) -> Rule | None:
    """The rule of a type; None for one that does not restrict values of a config."""
    origin, inside = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return next((mark for mark in hint.__metadata__ if isinstance(mark, Rule)), None)
    if origin is Literal:
        return OneOf(inside)
    if origin in (Union, UnionType):
        of_types = [_rule(kind) for kind in inside]
        return None if None in of_types else Either(tuple(rule for rule in of_types if rule))
    if origin in (list, tuple, collections.abc.Sequence):
        item, *more = [_rule(kind) for kind in inside if kind is not Ellipsis]
        length = len(inside) if origin is tuple and Ellipsis not in inside else None
        alike = all(other == item for other in more)
        return ListOf(item, length) if item is not None and alike else None
    return NULL if hint is NoneType else OF_TYPE.get(hint)


def _is_declared(hint: Any) -> bool:
    """Whether a type restricts values: has a Rule or a Literal."""
    if get_origin(hint) in (Annotated, Literal):
        return True
    return any(_is_declared(kind) for kind in get_args(hint))
