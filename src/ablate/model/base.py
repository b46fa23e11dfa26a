"""Base classes of the models, and their initialization with common random numbers.

Initial values depend only on the seed and the parameter's name, so two models that differ in one
component share all others, up to a standard deviation, which depends on the depth for maps into the
residual stream (`model.init_depth_scale`; docs/reference/side-effects.md).
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn

from ablate.config.conflicts import Conflict
from ablate.data import Data
from ablate.errors import UserError
from ablate.figures.tokens import token_drawer
from ablate.random.seeding import derive, seed_torch

ROLES = "embedding", "head", "matrix", "tensor", "vector"
# The parameters that `Model.freeze` keeps fixed.
Freeze = Literal["none", "embeddings", "encoder"]


@dataclass(frozen=True, kw_only=True)
class ModelTraits:
    """Facts about a model for the check of a composition.

    causal: a position may depend only on earlier ones, unless model.mask allows others; None: of a
    model without masks. attends: it has attention with any mixer. reads_without_attention: it has
    something to read without attention, such as an encoder's last state. pads: its batches are
    padded. source_first: one stack reads the source and then the target. has_grid: its positions
    are the patches of an image, in rows and columns. documents: its layers can stay within the
    documents of a row. returns_states: forward(read=False) returns the states that `logits`
    reads. embeds_values: its attention can have model.mixer.value_embedding.
    """

    causal: bool | None = None
    attends: bool = False
    reads_without_attention: bool = False
    pads: bool = False
    source_first: bool = False
    has_grid: bool = False
    documents: bool = False
    returns_states: bool = False
    embeds_values: bool = False


class Model(nn.Module):
    """Base of every architecture: initialization, freezing, and which parameters are embeddings."""

    # The kinds of data that it reads (`Data.kind`); any, if a class does not state them.
    kinds: ClassVar[tuple[str, ...]]
    # pos_enc acts in the "layers" of its stacks, or only at the "input"; None: it takes none.
    positions: ClassVar[str | None]
    # Its outputs; a task needs one of them (`Task.output`).
    outputs: ClassVar[tuple[str, ...]]
    traits: ClassVar[ModelTraits] = ModelTraits()
    conflicts: ClassVar[tuple[Conflict, ...]] = ()
    # Name prefixes of the parameters that embed the input; not counted as "non_embedding".
    embeddings: ClassVar[tuple[str, ...]] = ()
    # Name prefixes of the parameters of the output head.
    heads: ClassVar[tuple[str, ...]] = ("head.",)

    # The name of an input position in figures.
    item: ClassVar[str] = "token"

    # Of the base to the model, if it is trained with the optimizer of a base width and depth (muP).
    width_ratio: float = 1.0
    depth_ratio: float = 1.0

    # The name of the pretrained weights that the model starts from (ablate.training.pretrained).
    pretrained: str | None = None
    # A record of the weights that the model starts from, if they are another run's or pretrained.
    started_from: dict[str, Any] | None = None

    @property
    def compiles(self) -> list[nn.Module]:
        """The modules that compile=true compiles: the whole model, as one."""
        return [self]

    @classmethod
    def configure_data(cls, data: Data) -> None:
        """Configure the data for this model before it is read; by default this does nothing."""

    @classmethod
    def normalization(
        cls, keys: Mapping[str, Any]
    ) -> tuple[Sequence[float], Sequence[float]] | None:
        """Mean and standard deviation of each channel, between black 0 and white 1, of the images
        that pretrained weights expect; None: those of the data. keys: of the model's node."""
        return None

    def roles(self) -> dict[str, str]:
        """The role of each parameter: "vector" (biases, gains: fewer than two axes), "embedding",
        "head" (a tied one is an embedding), "matrix", or "tensor" (more than two axes, such as the
        kernel of a convolution). It determines the weight decay, and the rule of an optimizer that
        has several (`ablate.optimizer`). A module names its parameters that are vectors in spite
        of their axes in `vector_parameters`."""
        vectors = {
            f"{path}.{name}"
            for path, module in self.named_modules()
            for name in getattr(module, "vector_parameters", ())
        }
        return {
            name: "vector" if name in vectors else self._role(name, p)
            for name, p in self.named_parameters()
        }

    def _role(self, name: str, parameter: nn.Parameter) -> str:
        if parameter.dim() < 2:
            return "vector"
        if name.startswith(self.embeddings):
            return "embedding"
        if name.startswith(self.heads):
            return "head"
        return "matrix" if parameter.dim() == 2 else "tensor"

    def freeze(self, part: Freeze) -> None:
        """Freeze the "embeddings", the "encoder" (all but the head) or "none". An output projection
        tied to the token embedding is frozen with it.
        """
        for name, parameter in self.named_parameters():
            if part == "encoder":
                parameter.requires_grad = name.startswith(self.heads)
            elif part == "embeddings":
                parameter.requires_grad = not name.startswith(self.embeddings)

    def drawer(self, data: Any, example: dict[str, Any], maps: Sequence[Any]) -> Any:
        """`Presenter.drawer` of a task that leaves it to the model. data: of the task."""
        return token_drawer(example, maps, self.item)

    def map_kind(self, name: str, layer: nn.Module) -> str:
        """The kind of the attention maps of a layer with this name; they are numbered by kind."""
        return "attention"

    def figures(self, example: dict[str, Any], folder: Path, layer: int | None) -> list[Path]:
        """Draw, for a batch of size 1, a model that has no attention maps; return the paths.

        layer: this one only, counted from 1.
        """
        return []

    def initialize(self, seed: int) -> None:
        """Initialize every parameter, seeded by `seed` and the parameter's name."""
        draw_by_name(self, seed)

    def after_step(self) -> None:
        """Called after each step of the optimizer, for constraints on the weights."""


def outputs(
    computed: Shaped[Tensor, " ..."] | tuple[Shaped[Tensor, " ..."] | None, ...],
) -> list[Shaped[Tensor, " ..."]]:
    """The outputs of a model, one tensor or several, as a list."""
    several = (computed,) if isinstance(computed, Tensor) else computed
    return [tensor for tensor in several if tensor is not None]


@torch.no_grad()
def draw_by_name(model: nn.Module, seed: int) -> None:
    """Initialize each parameter with the `reset_parameters` of the module that owns it.

    That method initializes all parameters of a module; here each has its own seed, so that
    a table does not depend on the number before it, nor a bias on the shape of its weight.
    """
    drawn: dict[str, Tensor] = {}
    with torch.random.fork_rng(devices=[]):
        for name, parameter in model.named_parameters():
            owner = _owner(model, name)
            with _alone(owner, parameter):
                seed_torch(derive(seed, "init", name), parameter.device)
                owner.reset_parameters()  # type: ignore[operator]  # _owner checked it
            drawn[name] = parameter.clone()
    for name, parameter in model.named_parameters():
        parameter.copy_(drawn[name])


@contextmanager
def _alone(owner: nn.Module, parameter: nn.Parameter) -> Iterator[None]:
    """Move the other parameters of a module to the meta device, which draws no random numbers."""
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
    """The innermost module around a parameter that has `reset_parameters`."""
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
    """Base of language models. `length`: the maximum number of tokens it can read at once; None:
    any number.

    A cache (a KV cache or a recurrent state) contains the model's intermediate results for earlier
    tokens; its `length()` is their number.
    """

    length: int | None

    @abstractmethod
    def forward(
        self, tokens: Int[Tensor, "b i"], *, cache: Any = None
    ) -> Float[Tensor, "b i vocab_size"]:
        """tokens: with a cache only the new ones -> logits."""

    @abstractmethod
    def new_cache(self) -> Any:
        """An empty cache; None if a new token changes the states of earlier ones."""


class State(ABC):
    """The state of a decoder between two steps: the encoded source and the target so far."""

    @abstractmethod
    def select(self, rows: Int[Tensor, " rows"]) -> None:
        """Keep these rows of the batch, in this order; rows may be repeated."""


class Seq2Seq(Model):
    """Base of encoder-decoders: source and target tokens in, logits of the next target token out.

    Both sides are token ids, padded with `ablate.data.pairs.PAD`, on which no result depends.
    """

    kinds = ("pairs",)

    @property
    def cross(self) -> list[nn.Module]:
        """The modules that attend to the source, in the order of application."""
        raise NotImplementedError

    def map_kind(self, name: str, layer: nn.Module) -> str:
        """ "encoder", "decoder" (self-attention) or "cross" (the decoder to the encoder)."""
        return "cross" if layer in self.cross else name.partition(".")[0]

    def to_source(
        self, weights: Float[Tensor, "b h i j"], sources: int
    ) -> Float[Tensor, "b h _ _"]:
        """The recorded weights of a module of `cross` -> attention to the first positions of the
        source, as many as `sources`."""
        return weights

    @abstractmethod
    def forward(
        self, source: Int[Tensor, "b j"] | Float[Tensor, "b c y x"], target_in: Int[Tensor, "b i"]
    ) -> Float[Tensor, "b i target_vocab"]:
        """Teacher forcing. source: tokens, or images."""

    @abstractmethod
    def encode(self, source: Int[Tensor, "b j"] | Float[Tensor, "b c y x"]) -> State:
        """The initial decoder state, with everything that is computed once per source."""

    @abstractmethod
    def step(self, tokens: Int[Tensor, " b"], state: State) -> Float[Tensor, "b target_vocab"]:
        """The last tokens written (first BOS) -> logits; advances the state."""
