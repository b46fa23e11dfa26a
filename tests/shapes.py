"""Shapes in annotations, such as `Float[Tensor, "b i d"]`, are checked in every call of a test."""

import dataclasses
import inspect
from collections.abc import Callable
from functools import cache, partial, wraps
from importlib.util import cache_from_source
from pathlib import Path
from typing import Any, get_args

import jaxtyping
import torch
from jaxtyping import AbstractArray, _import_hook, install_import_hook, jaxtyped

import ablate

PACKAGES = [f"ablate.{name}" for name in ("interface", "model", "kernel", "pos_enc", "decode")]
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
    if inspect.isclass(made):
        if dataclasses.is_dataclass(made) and "__init__" in vars(made):
            made.__init__ = sparing(made.__init__, typechecker=typechecker)  # type: ignore[misc]
        return made
    if not any(map(has_shape, made.__annotations__.values())):
        return made

    @wraps(made)
    def call(*args: Any, **named: Any) -> Any:
        run = made if torch.compiler.is_compiling() else checked(made, typechecker)
        return run(*args, **named)

    return call


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
