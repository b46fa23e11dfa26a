"""Common random numbers for initial values: each depends on the seed and the parameter's own name.

Two models that differ in one part start from the same values everywhere else.
"""

from abc import ABC, abstractmethod
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

    # What ablate.training.transfer says of a model that starts from another run's weights.
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


class LanguageModel(Model):
    """`length` is how many tokens it can read at once; None: any number.

    A cache is what the model keeps of tokens it has read, so that it need not read them again; its
    `length()` is how many they are. Of what kind it is, the model knows.
    """

    length: int | None

    @abstractmethod
    def forward(self, tokens: Tensor, *, cache: Any = None) -> Tensor:
        """tokens: b i (with a cache: those after what it has seen) -> b i vocab_size."""

    @abstractmethod
    def new_cache(self) -> Any:
        """One without tokens. None where a new token changes what was made of those before."""


class Forecaster(Model):
    """`difference`: the forecast is the last value that was read and what `read` adds to it.

    The naive forecast of the last value is then where the model starts from; without, it has to
    learn it. On the validation part of the sunspots both ways beat the naive forecasts, and the
    difference does better.
    """

    difference: bool

    def forward(self, values: Tensor) -> Tensor:
        """b i c -> b i c: the forecast of the next value at every position, from those up to it."""
        return values + self.read(values) if self.difference else self.read(values)

    @abstractmethod
    def read(self, values: Tensor) -> Tensor:
        """b i c -> b i c."""


@torch.no_grad()
def roll_out(model: Forecaster, values: Tensor, steps: int) -> Tensor:
    """The next `steps` values after b i c: b steps c.

    Each forecast is read as a value by the next, and the oldest is forgotten: as many are read as
    in training.
    """
    forecasts = []
    for _ in range(steps):
        forecasts.append(model(values)[:, -1:])
        values = torch.cat([values[:, 1:], forecasts[-1]], dim=1)
    return torch.cat(forecasts, dim=1)


class State(ABC):
    """What a decoder keeps between two steps: the encoded source and how far the target is."""

    @abstractmethod
    def select(self, rows: Tensor) -> None:
        """Keep these rows of the batch in this order, repeated where they are named twice."""


class Seq2Seq(Model):
    """Source and target tokens in, logits of the next target token out.

    Both sides are numbers of tokens, filled up with `ablate.data.pairs.PAD`, which no result
    depends on.
    """

    @property
    def cross(self) -> list[nn.Module]:
        """The attention modules that read the encoder, in the order of application."""
        raise NotImplementedError

    @abstractmethod
    def forward(self, source: Tensor, target_in: Tensor) -> Tensor:
        """Teacher forcing: b j, b i -> b i target_vocab."""

    @abstractmethod
    def encode(self, source: Tensor) -> State:
        """b j -> where a decoder starts from; everything that is computed once for a source."""

    @abstractmethod
    def step(self, tokens: Tensor, state: State) -> Tensor:
        """The tokens written last, b (first BOS) -> logits b target_vocab; advances the state."""
