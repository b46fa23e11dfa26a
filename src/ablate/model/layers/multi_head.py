"""Multi-head attention with any score (Vaswani et al. 2017, section 3.2.2).

https://arxiv.org/abs/1706.03762. Queries, keys and values (Q, K, V; QKV) are projected for each
head, the score compares queries and keys, a kernel averages the values, and the output projection
joins the heads.
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
from ablate.model.layers.draws import Stream
from ablate.model.layers.linear import STD, Linear
from ablate.model.mask import Mask
from ablate.model.mask.none import NoMask
from ablate.model.normalizer import Normalizer
from ablate.pos_enc import PosEnc
from ablate.pos_enc.none import NoPosEnc


class KeyValueCache:
    """KV cache: keys and values of the tokens read so far, one pair per attention layer applied."""

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
    """The encoded source as the cross-attention of each decoder layer reads it.

    `layers` holds its keys and values for each cross-attention, b h j k, computed once per source;
    keep: b j, True = not padding.
    """

    def __init__(self, layers: list[tuple[Tensor, Tensor]], keep: Tensor) -> None:
        self.layers, self.keep = layers, keep
        self.sources = torch.arange(len(keep), device=keep.device)

    def select(self, rows: Tensor) -> None:
        """Keep these rows of the batch in this order, repeated where they are named twice."""
        sources = self.sources[rows]
        # A beam search mostly reorders hypotheses of one source, which share the memory.
        if not torch.equal(sources, self.sources):
            self.layers = [(k[rows], v[rows]) for k, v in self.layers]
            self.sources, self.keep = sources, self.keep[rows]


class MultiHeadAttention(nn.Module):
    """Q, K, V and output projections, score and kernel; subclasses do self- or cross-attention.

    `score` makes the score from heads, query_dim, key_dim and length. For a score that does not use
    the query (or key) there is no such projection.
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
        self.draws = Stream()
        self.kernel = kernel.resolve(
            Layer(self.score, pos, softmax=normalizer.fused, ranges=mask.ranges)
        )
        # A list while `recording` collects the attention weights, else None.
        self.recorded: list[Tensor] | None = None

    @property
    def random(self) -> bool:
        """Whether it draws random numbers."""
        return self.training and (self.dropout > 0 or self.normalizer.samples)

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
        use: int = 0,
    ) -> Tensor:
        """b h i k, b h j k twice -> b i d; use: counts the uses of this layer in a pass; the
        other arguments as in Attend."""
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
            stream=self.draws.key(v, use) if self.random else None,
        )
        if self.recorded is not None:
            self.recorded.append(attention_weights(replace(attend, training=False)).detach())
        return self.out(rearrange(self.kernel(attend), "b h i k -> b i (h k)"))

    def _heads(self, projection: Linear | None, x: Tensor) -> Tensor:
        """b i d -> b h i k; width 0 without a projection."""
        if projection is None:
            return x.new_zeros(x.shape[0], self.heads, x.shape[1], 0)
        return rearrange(projection(x), "b i (h k) -> b h i k", h=self.heads)


class SelfAttention(MultiHeadAttention):
    """Every position attends to the positions of the same sequence."""

    def forward(
        self,
        x: Tensor,
        pos: PosEnc,
        *,
        keep: Tensor | None = None,
        cache: KeyValueCache | None = None,
        place: int = 0,
        use: int = 0,
        position: int | None = None,
    ) -> Tensor:
        """x: b i d; keep: b j, True = not padding -> b i d, or b 1 d for `position` alone.

        With a KV cache, x holds only the new tokens. `place` counts the attention layers applied so
        far; if layers are shared, it differs from `self.layer`.
        """
        first, last = (0, x.shape[1]) if position is None else (position, position + 1)
        q, (k, v) = self.queries(x[:, first:last]), self.keys_and_values(x)
        start = cache.length(place) if cache is not None else 0
        new = torch.arange(start, start + x.shape[1], device=x.device)
        q, k = pos.rotate(q, k, new[first:last], new)
        if cache is not None:
            k, v = cache.append(place, k, v)
        return self.attend(q, k, v, pos, start=start + first, keep=keep, use=use)


class CrossAttention(MultiHeadAttention):
    """Every position of a sequence attends to all positions of another, the memory.

    There is no distance between two sequences, so no mask and no positions act here (see
    ablate.pos_enc).
    """

    def __init__(self, dim: int, *, heads: int, length: int, **parts: Any):
        pos = NoPosEnc(dim=dim, heads=heads, head_dim=dim // heads, length=length, depth=1)
        mask = NoMask(causal=False)
        super().__init__(dim, heads=heads, length=length, mask=mask, pos=pos, **parts)
        self.pos = pos

    def read(self, source: Tensor) -> tuple[Tensor, Tensor]:
        """b j d -> keys and values for `Memory`; the keys are prepared by the score, unless it is a
        dot product, whose kernels take the plain keys.
        """
        k, v = self.keys_and_values(source)
        return (k if self.score.lowers else self.score.keys(k)), v

    def forward(self, x: Tensor, memory: Memory, *, use: int = 0) -> Tensor:
        """b i d -> b i d; `use` as in `attend`."""
        k, v = memory.layers[self.layer]
        prepared = None if self.score.lowers else k
        q = self.queries(x)
        return self.attend(q, k, v, self.pos, keep=memory.keep, prepared=prepared, use=use)


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
