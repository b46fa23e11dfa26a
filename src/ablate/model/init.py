"""Common random numbers for initial values: each depends on the seed and the parameter's own name.

Two models that differ in one part start from the same values everywhere else.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ablate.errors import UserError
from ablate.seeding import derive


class Model(nn.Module):
    """Base of every architecture: how it gets its initial values, and which are tables."""

    # Beginnings of the names of parameters that embed the input; not counted as "non_embedding".
    embeddings: ClassVar[tuple[str, ...]] = ()
    # ... and of those that make the output from what was encoded.
    heads: ClassVar[tuple[str, ...]] = ("head.",)

    # What ablate.transfer says of a model that starts from another run's weights.
    started_from: dict[str, Any] | None = None

    @property
    def compiles(self) -> list[nn.Module]:
        """What compile=true compiles: all of it, as one."""
        return [self]

    @classmethod
    def ask(cls, data: Any) -> None:
        """Tell the data, before it is read, what this model wants of it: nothing."""

    def freeze(self, part: str) -> None:
        """Keep parameters as they are: of "embeddings", of the "encoder" (all but the head), of
        "none". An output map that is the table of tokens is frozen with it.
        """
        for name, parameter in self.named_parameters():
            if part == "encoder":
                parameter.requires_grad = name.startswith(self.heads)
            elif part == "embeddings":
                parameter.requires_grad = not name.startswith(self.embeddings)

    def initialise(self, seed: int) -> None:
        """Draw every parameter anew, seeded by `seed` and the parameter's name."""
        draw_by_name(self, seed)


def outputs(computed: Tensor | tuple[Tensor | None, ...]) -> list[Tensor]:
    """What a model computes, one tensor or several, as a list."""
    several = (computed,) if isinstance(computed, Tensor) else computed
    return [tensor for tensor in several if tensor is not None]


@torch.no_grad()
def draw_by_name(model: nn.Module, seed: int) -> None:
    """Draw each parameter by the `reset_parameters` of the module that owns it.

    A module draws all of its parameters at once; each is drawn under its own seed and alone, so
    that a table does not depend on how many stand before it, nor a bias on the shape of its weight.
    """
    drawn: dict[str, Tensor] = {}
    with torch.random.fork_rng(devices=[]):
        for name, parameter in model.named_parameters():
            owner = _owner(model, name)
            with _alone(owner, parameter):
                torch.manual_seed(derive(seed, "init", name))
                owner.reset_parameters()  # type: ignore[operator]  # _owner has seen it
            drawn[name] = parameter.clone()
    for name, parameter in model.named_parameters():
        parameter.copy_(drawn[name])


@contextmanager
def _alone(owner: nn.Module, parameter: nn.Parameter) -> Iterator[None]:
    """Put the other parameters of a module aside: on the meta device, where nothing is drawn."""
    others = [
        (module, name, other)
        for module in owner.modules()
        for name, other in module.named_parameters(recurse=False)
        if other is not parameter
    ]
    try:
        for module, name, other in others:
            setattr(module, name, nn.Parameter(other.to("meta"), requires_grad=False))
        yield
    finally:
        for module, name, other in others:
            setattr(module, name, other)


def _owner(model: nn.Module, name: str) -> nn.Module:
    """The innermost module around a parameter that can draw it."""
    path = name.split(".")[:-1]
    for depth in range(len(path), -1, -1):
        module = model.get_submodule(".".join(path[:depth]))
        if hasattr(module, "reset_parameters"):
            return module
    raise UserError(
        f"{type(model).__name__}: the parameter {name} belongs to no module with "
        f"reset_parameters(), so its initial value cannot be seeded by its name"
    )
