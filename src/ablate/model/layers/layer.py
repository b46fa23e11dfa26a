"""The interface of every layer in a block: `forward(x, context)`, b i d -> b i d.

Attention, convolutions, recurrences with a state, feed-forward networks: a block applies them one
after another only through this interface. Facts that a model needs are class attributes, which the
check of a composition reads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn

from ablate.config.conflicts import Conflict
from ablate.config.rules import Width
from ablate.kernel import Kernel
from ablate.kernel.interface.documents import Documents
from ablate.model.attention import Score
from ablate.model.mask import Mask
from ablate.model.normalizer import Normalizer
from ablate.pos_enc import PosEnc

State = tuple[Shaped[Tensor, "b ..."], ...]


@dataclass(frozen=True, kw_only=True)
class LayerTraits:
    """Facts about a layer, for the check of a composition.

    mixes: it reads other positions than the one that it computes; then it computes only
    `context.position` on request, b i d -> b 1 d. attends: it has attention weights:
    model.attention, model.normalizer and kernel act in it. reads_positions: encodings that act
    inside attention, such as rotary, act in it. reads_mask: it restricts each position to the keys
    that any mask allows; else it reads of the mask only whether it looks ahead. caches: it
    continues from `context.recall` when it reads only the new tokens. causal: it never reads a
    later position (True), always does (False), or as the mask allows (None).
    """

    mixes: bool = True
    attends: bool = False
    reads_positions: bool = False
    reads_mask: bool = False
    caches: bool = False
    causal: bool | None = None


@dataclass(frozen=True)
class LayerSpec:
    """The settings that a model passes to each of its layers.

    length: positions in training, on an image the patches in the rows and columns of `grid`. std,
    out_std: standard deviation of initial linear maps, and of those whose output is added to the
    residual stream. score: makes the score of model.attention from its sizes. layer: index of the
    layer among those that share `pos`. query_scale: factor of the queries (muP).
    """

    dim: int
    heads: Width
    length: int
    grid: tuple[int, int] | None
    bias: bool
    std: float
    out_std: float
    dropout: float
    score: Callable[..., Score]
    normalizer: Normalizer
    kernel: Kernel
    mask: Mask
    pos: PosEnc
    layer: int = 0
    query_scale: float = 1.0


class Cache:
    """The layers' state after the tokens so far, such as their keys and values (KV cache).

    `states` contains the tensors of each application of a layer, or of another module that reads
    earlier tokens; their first dimension is the batch.
    """

    def __init__(self) -> None:
        self.tokens = 0
        self.states: dict[tuple[int, nn.Module], State] = {}

    def length(self) -> int:
        """Tokens read so far."""
        return self.tokens

    def select(self, rows: Int[Tensor, " rows"]) -> None:
        """Keep these rows of the batch in this order; rows may repeat."""
        self.states = {
            key: tuple(tensor[rows] for tensor in state) for key, state in self.states.items()
        }


class Memory:
    """The encoded source for the layers that attend to it.

    `states` contains the tensors of each layer, such as its keys and values, b h j k, computed once
    per source; keep: True = not padding.
    """

    def __init__(self, states: dict[Layer, State], keep: Bool[Tensor, "b j"]) -> None:
        self.states, self.keep = states, keep
        self.sources = torch.arange(len(keep), device=keep.device)

    def select(self, rows: Int[Tensor, " rows"]) -> None:
        """Keep these rows of the batch in this order; rows may repeat."""
        sources = self.sources[rows]
        # A beam search mostly reorders hypotheses of one source, which share the memory.
        if not torch.equal(sources, self.sources):
            self.states = {
                layer: tuple(tensor[rows] for tensor in state)
                for layer, state in self.states.items()
            }
            self.sources, self.keep = sources, self.keep[rows]


@dataclass
class Context:
    """The inputs of a layer in one pass, in addition to x.

    keep: True = not padding; it may be None if nothing attends to padding. counted: the tokens
    in the mean of a loss, None: those of `keep`. documents: those that no layer crosses; None with
    a cache. start: position of the first row of the input, the number of tokens in the cache.
    position: the single position to compute, None: all. step: blocks applied before. use: how often
    the layer was applied before in this pass, which shared layers are several times. pos: the
    position encoding of the block. condition: input of sublayers with a `Modulation`. embedded: the
    input of the first block. first_values: the values of the first block of this pass with
    model.mixer.value_residual, by its `step`. value_embeddings: of the tokens, for each layer with
    model.mixer.value_embedding.
    """

    pos: PosEnc
    keep: Bool[Tensor, "b j"] | None = None
    counted: Bool[Tensor, "b j"] | None = None
    documents: Documents | None = None
    cache: Cache | None = None
    memory: Memory | None = None
    condition: Float[Tensor, "b d"] | None = None
    embedded: Float[Tensor, "b i d"] | None = None
    start: int = 0
    position: int | None = None
    step: int = 0
    use: int = 0
    losses: list[tuple[str, Float[Tensor, ""]]] = field(default_factory=list)
    first_values: dict[int, Float[Tensor, "_ _ _ _"]] = field(default_factory=dict)
    value_embeddings: Mapping[Layer, Float[Tensor, "b i _"]] = field(default_factory=dict)

    def positions(self, x: Float[Tensor, "b i d"]) -> Int[Tensor, " i"]:
        """The positions of the rows of the input."""
        return torch.arange(self.start, self.start + x.shape[1], device=x.device)

    def rows(self, x: Float[Tensor, "b i d"]) -> tuple[int, int]:
        """The rows of the input to compute, from one to before another."""
        return (0, x.shape[1]) if self.position is None else (self.position, self.position + 1)

    def recall(self, layer: Layer) -> State | None:
        """The layer's state after the previous tokens; None at the start."""
        return None if self.cache is None else self.cache.states.get((self.step, layer))

    def remember(self, layer: Layer, *state: Shaped[Tensor, "b ..."]) -> None:
        """Keep tensors until the layer reads the next tokens."""
        if self.cache is not None:
            self.cache.states[self.step, layer] = state

    def add_loss(self, name: str, value: Float[Tensor, ""]) -> None:
        """Add to the loss of a training step, such as the balance of a router; it is
        logged as train/NAME, summed over the layers."""
        self.losses.append((name, value))

    def selected(self) -> Context:
        """The context after a layer that computed only `position`."""
        assert self.position is not None
        embedded = self.embedded
        if embedded is not None:
            embedded = embedded[:, self.position : self.position + 1]
        start = self.start + self.position
        return replace(self, start=start, position=None, embedded=embedded)


# Groups that act inside attention, and their defaults.
USUAL = {"model.attention": "scaled_dot", "model.normalizer": "softmax", "kernel": "auto"}


class Layer(nn.Module):
    """Base of the layers of a block.

    A mixer (`model.mixer=`) is constructed from a `LayerSpec` and the keys of its YAML, and mixes
    positions.
    """

    conflicts: ClassVar[tuple[Conflict, ...]] = (
        *(
            Conflict(
                lambda c, group=group, usual=usual: (  # type: ignore[misc]
                    not (c.trait("model.mixer", "attends") or c.trait("model", "attends"))
                    and c.option(group) != usual
                ),
                f"{group}={{{group}}} acts inside attention, and model.mixer={{model.mixer}} has"
                f" none; use {group}={usual}",
                without_effect=True,
            )
            for group, usual in USUAL.items()
        ),
        Conflict(
            lambda c: (
                not c.trait("model.mixer", "reads_positions")
                and c.attribute("pos_enc", "acts_in") == "attention"
            ),
            "pos_enc={pos_enc} acts inside attention, and model.mixer={model.mixer} has none; use"
            " pos_enc=learned, sinusoidal, learned_from_sinusoidal or none",
            without_effect=True,
        ),
        Conflict(
            lambda c: (
                not c.trait("model.mixer", "reads_mask")
                and c.attribute("model.mask", "looks_ahead") is None
            ),
            "model.mask={model.mask} restricts attention weights, and model.mixer={model.mixer} has"
            " none; use model.mixer=attention or fixed",
            without_effect=True,
        ),
        Conflict(
            lambda c: (
                c.trait("model.mixer", "causal") is True
                and c.attribute("model.mask", "looks_ahead") is True
            ),
            "model.mixer={model.mixer} reads only earlier positions, and model.mask={model.mask}"
            " lets every position see later ones; use model.mask=causal",
        ),
        Conflict(
            lambda c: (
                c.trait("model.mixer", "causal") is False
                and c.attribute("model.mask", "looks_ahead") is False
            ),
            "model.mixer={model.mixer} reads later positions, which model.mask={model.mask} does"
            " not allow",
        ),
    )
    traits: LayerTraits = LayerTraits()
    # Whether its output depends on its input `x`; if not, it has no norm before it.
    reads_input: bool = True
    # Its keys that the cross-attention of its block also has.
    attention_keys: Mapping[str, Any] = {}

    @property
    def reads_memory(self) -> bool:
        return type(self).read is not Layer.read

    @property
    def selects(self) -> bool:
        """Whether it can now compute a single position; recording attention requires all."""
        return True

    def forward(self, x: Float[Tensor, "b i d"], context: Context) -> Float[Tensor, " b #i d"]:
        """All positions, or only `context.position`."""
        raise NotImplementedError

    def read(self, source: Float[Tensor, "b j d"]) -> State:
        """The tensors of an encoded source that the layer reads, for `Memory`; a layer that
        implements this reads a memory."""
        raise NotImplementedError
