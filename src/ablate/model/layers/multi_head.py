"""Multi-head attention with any score (Vaswani et al. 2017, section 3.2.2).

https://arxiv.org/abs/1706.03762. Queries, keys and values are projected for each head, the score
compares them, a kernel averages the values, the heads are joined by the output projection.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from einops import rearrange
from torch import Tensor, nn

from ablate.kernel import Attend, Kernel, Layer, attention_weights
from ablate.model.attention import Score
from ablate.model.layers.linear import STD, Linear
from ablate.model.mask import Mask
from ablate.model.mask.none import NoMask
from ablate.model.normalizer import Normalizer
from ablate.pos_enc import PosEnc
from ablate.pos_enc.none import NoPosEnc


class KeyValueCache:
    """Keys and values of the tokens a decoder has read, one pair for every attention it passes."""

    def __init__(self) -> None:
        self.places: dict[int, tuple[Tensor, Tensor]] = {}

    def length(self, place: int = 0) -> int:
        """Tokens read so far."""
        return self.places[place][1].shape[2] if place in self.places else 0

    def append(self, place: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """All keys and values so far, b h j k, with the new ones at the end."""
        if place in self.places:
            old_k, old_v = self.places[place]
            k, v = torch.cat([old_k, k], dim=2), torch.cat([old_v, v], dim=2)
        self.places[place] = k, v
        return k, v

    def select(self, rows: Tensor) -> None:
        """Keep these rows of the batch in this order, repeated where they are named twice."""
        self.places = {place: (k[rows], v[rows]) for place, (k, v) in self.places.items()}


class Memory:
    """What a decoder reads beside its own tokens: an encoded source, as each layer sees it.

    `layers` holds the keys and values that each cross-attention made of it, b h j k, once for a
    source; keep: b j, True = not padding.
    """

    def __init__(self, layers: list[tuple[Tensor, Tensor]], keep: Tensor) -> None:
        self.layers, self.keep = layers, keep
        self.sources = torch.arange(len(keep), device=keep.device)

    def select(self, rows: Tensor) -> None:
        """Keep these rows of the batch in this order, repeated where they are named twice."""
        sources = self.sources[rows]
        # A beam search mostly reorders hypotheses of one source, which read the same.
        if not torch.equal(sources, self.sources):
            self.layers = [(k[rows], v[rows]) for k, v in self.layers]
            self.sources, self.keep = sources, self.keep[rows]


class MultiHeadAttention(nn.Module):
    """Projections, score and kernel; whether x attends to itself or to a memory, subclasses say.

    `score` makes the score from heads, query_dim, key_dim and length. A score that does not look at
    the query (or key) gets none: there is no such projection.
    """

    def __init__(
        self,
        dim: int,
        *,
        heads: int,
        score: Callable[..., Score],
        normalizer: Normalizer,
        mask: Mask,
        pos: PosEnc,
        kernel: Kernel,
        length: int,
        dropout: float = 0.0,
        bias: bool = True,
        layer: int = 0,
        std: float = STD,
        out_std: float = STD,
    ):
        super().__init__()
        assert dim % heads == 0
        head_dim = dim // heads
        self.heads, self.layer, self.dropout, self.mask = heads, layer, dropout, mask
        self.score = score(heads=heads, query_dim=head_dim, key_dim=head_dim, length=length)
        self.query = Linear(dim, dim, bias=bias, std=std) if self.score.query else None
        self.key = Linear(dim, dim, bias=bias, std=std) if self.score.key else None
        self.value = Linear(dim, dim, bias=bias, std=std)
        self.out = Linear(dim, dim, bias=bias, std=out_std)
        self.normalizer = normalizer
        self.kernel = kernel.resolve(
            Layer(self.score, pos, softmax=normalizer.fused, ranges=mask.ranges)
        )
        # A list while somebody wants to see the weights (`recording`), else None.
        self.recorded: list[Tensor] | None = None

    def queries(self, x: Tensor) -> Tensor:
        """b i d -> b h i k."""
        return self._heads(self.query, x)

    def keys_and_values(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """b j d -> b h j k twice."""
        return self._heads(self.key, x), self._heads(self.value, x)

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        pos: PosEnc,
        *,
        start: int = 0,
        keep: Tensor | None = None,
        prepared: Tensor | None = None,
    ) -> Tensor:
        """b h i k, b h j k twice -> b i d; the others are those of Attend."""
        attend = Attend(
            q=q,
            k=k,
            v=v,
            score=self.score,
            mask=self.mask,
            pos=pos,
            layer=self.layer,
            start=start,
            keep=keep,
            prepared=prepared,
            normalizer=self.normalizer,
            dropout=self.dropout if self.training else 0.0,
            training=self.training,
        )
        if self.recorded is not None:
            self.recorded.append(attention_weights(replace(attend, training=False)).detach())
        return self.out(rearrange(self.kernel(attend), "b h i k -> b i (h k)"))

    def _heads(self, projection: Linear | None, x: Tensor) -> Tensor:
        """b i d -> b h i k; width 0 where the score does not look."""
        if projection is None:
            return x.new_zeros(x.shape[0], self.heads, x.shape[1], 0)
        return rearrange(projection(x), "b i (h k) -> b h i k", h=self.heads)


class SelfAttention(MultiHeadAttention):
    """From every position of a sequence to the positions of the same sequence."""

    def forward(
        self,
        x: Tensor,
        pos: PosEnc,
        *,
        keep: Tensor | None = None,
        cache: KeyValueCache | None = None,
        place: int = 0,
        only: int | None = None,
    ) -> Tensor:
        """x: b i d; keep: b j, True = not padding -> b i d, or, of the position `only`, b 1 d.

        With a cache, x holds the tokens after those the cache has seen. `place` counts the
        attention layers passed so far; where one is applied several times it is not `self.layer`.
        """
        first, last = (0, x.shape[1]) if only is None else (only, only + 1)
        q, (k, v) = self.queries(x[:, first:last]), self.keys_and_values(x)
        start = cache.length(place) if cache is not None else 0
        new = torch.arange(start, start + x.shape[1], device=x.device)
        q, k = pos.rotate(q, k, new[first:last], new)
        if cache is not None:
            k, v = cache.append(place, k, v)
        return self.attend(q, k, v, pos, start=start + first, keep=keep)


class CrossAttention(MultiHeadAttention):
    """From every position of a sequence to all of another's, the memory.

    Two sequences have no distance, so no mask and no positions act here (see ablate.pos_enc).
    """

    def __init__(self, dim: int, *, heads: int, length: int, **parts: Any):
        pos = NoPosEnc(dim=dim, heads=heads, head_dim=dim // heads, length=length, depth=1)
        mask = NoMask(causal=False)
        super().__init__(dim, heads=heads, length=length, mask=mask, pos=pos, **parts)
        self.pos = pos

    def read(self, source: Tensor) -> tuple[Tensor, Tensor]:
        """b j d -> keys and values for `Memory`; the keys as the score prepares them, if it is no
        product, for which kernels want them bare.
        """
        k, v = self.keys_and_values(source)
        return (k if self.score.lowers else self.score.keys(k)), v

    def forward(self, x: Tensor, memory: Memory) -> Tensor:
        """b i d -> b i d."""
        k, v = memory.layers[self.layer]
        prepared = None if self.score.lowers else k
        return self.attend(self.queries(x), k, v, self.pos, keep=memory.keep, prepared=prepared)


@contextmanager
def recording(model: nn.Module) -> Iterator[list[list[Tensor]]]:
    """Collect the attention weights of every layer while the block runs: per layer, b h i j each.

    A layer is any module with an attribute `recorded`, a list to append to or None. The weights are
    computed beside the kernel by the reference formula, and change no result.
    """
    layers: list[Any] = [m for m in model.modules() if hasattr(m, "recorded")]
    for layer in layers:
        layer.recorded = []
    try:
        yield [layer.recorded for layer in layers]
    finally:
        for layer in layers:
            layer.recorded = None
