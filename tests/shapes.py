"""Shapes in annotations, such as `Float[Tensor, "b i d"]`, are checked in the tests: once for the
shapes that a function is given."""

import dataclasses
import inspect
from collections.abc import Callable
from functools import cache, partial, wraps
from importlib.util import cache_from_source
from pathlib import Path
from typing import Any, get_args
from weakref import WeakKeyDictionary

import jaxtyping
import torch
from jaxtyping import AbstractArray, _import_hook, install_import_hook, jaxtyped
from torch import Tensor, nn

import ablate

PACKAGES = [f"ablate.{name}" for name in ("model", "kernel", "pos_enc", "decode")]
SOURCE = str(Path(ablate.__file__).parent)
# An int is a float, too.
CHECKER = "beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))"


def install() -> None:
    """Before any of the packages is imported."""
    install_import_hook(PACKAGES, CHECKER)
    jaxtyping.jaxtyped = sparing  # what the hook puts around everything
    tagged = _import_hook._optimized_cache_from_source

    def place(tag: str, path: str, *how: Any, **more: Any) -> str:
        """Where the bytecode of a module is. While a module of ours is imported, jaxtyping would
        compile everything anew that it imports, such as Lightning: five seconds of every process.
        """
        ours = path.startswith(SOURCE)
        return tagged(tag, path, *how, **more) if ours else cache_from_source(path, *how, **more)

    _import_hook._optimized_cache_from_source = place  # type: ignore[assignment]


def sparing(made: Any = None, *, typechecker: Any) -> Any:
    """jaxtyping's `jaxtyped` for what has a shape, and not while torch compiles it; all else stays
    as it is: torch and Triton look into functions that they are given."""
    if made is None:
        return partial(sparing, typechecker=typechecker)
    if torch.compiler.is_compiling():  # a function that a compiled one makes
        return made
    if inspect.isclass(made):
        if dataclasses.is_dataclass(made) and "__init__" in vars(made):
            made.__init__ = sparing(made.__init__, typechecker=typechecker)  # type: ignore[misc]
        return made
    if not any(map(has_shape, made.__annotations__.values())):
        return made

    @wraps(made)
    def call(*args: Any, **named: Any) -> Any:
        if torch.compiler.is_compiling():
            return made(*args, **named)
        return once(made, typechecker, args, named)

    return call


# The shapes that a function was given so far; of one of a module with its class and its numbers,
# since a shape may be that of an attribute (`{self.heads}`).
SEEN: set[Any] = set()
NUMBERS: WeakKeyDictionary[nn.Module, Any] = WeakKeyDictionary()


def once(made: Callable[..., Any], typechecker: Any, args: Any, named: dict[str, Any]) -> Any:
    """Check a call if there was none of these shapes: a check takes as long as the call."""
    key = (made, *map(outline, args), *map(outline, named.items()))
    try:
        if key in SEEN:
            return made(*args, **named)
    except TypeError:  # a size that torch.compile does not know has no hash
        return made(*args, **named)
    result = checked(made, typechecker)(*args, **named)
    SEEN.add(key)
    return result


def outline(value: Any) -> Any:
    """The shapes in a value."""
    if isinstance(value, Tensor):
        return value.shape, value.dtype
    if isinstance(value, nn.Module):
        if (known := NUMBERS.get(value)) is None:
            ints = (x for x in vars(value).values() if isinstance(x, int))
            known = NUMBERS[value] = (type(value), *ints)
        return known
    if isinstance(value, tuple | list):
        return tuple(map(outline, value))
    if dataclasses.is_dataclass(value):
        return type(value), *map(outline, vars(value).values())
    return value if isinstance(value, int | float | str | None) else type(value)


@cache  # made at the first call: it takes milliseconds
def checked(made: Callable[..., Any], typechecker: Any) -> Callable[..., Any]:
    whole: Callable[..., Any] = jaxtyped(made, typechecker=typechecker)
    return whole


def has_shape(hint: Any) -> bool:
    """Whether a type, or its text, is that of a tensor with a shape, or holds one."""
    if isinstance(hint, str):
        return "[Tensor, " in hint
    if inspect.isclass(hint) and issubclass(hint, AbstractArray):
        return True
    return any(map(has_shape, get_args(hint)))
