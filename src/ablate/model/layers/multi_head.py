"""Multi-head attention with any score (Vaswani et al. 2017, section 3.2.2).

https://arxiv.org/abs/1706.03762. Queries, keys and values (Q, K, V; QKV) are projected for each
head, the score compares queries and keys, a kernel averages the values, and the output projection
joins the heads.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from einops import rearrange
from torch import Tensor, nn

from ablate.kernel import Attend, Parts, attention_weights
from ablate.model.layers.layer import Context, Layer, Place, State
from ablate.model.layers.linear import Linear
from ablate.model.mask.none import NoMask
from ablate.pos_enc import PosEnc
from ablate.pos_enc.none import NoPosEnc
from ablate.random.draws import Stream


class MultiHeadAttention(Layer):
    """Q, K, V and output projections, score and kernel; self-attention is model/mixer/attention.py.

    `score` makes the score from heads, query_dim, key_dim and length. For a score that does not use
    the query (or key) there is no such projection.
    """

    attends = True
    has_heads = True

    def __init__(self, place: Place):
        super().__init__()
        dim, heads = place.dim, place.heads
        assert dim % heads == 0
        head_dim = dim // heads
        self.heads, self.layer, self.dropout = heads, place.layer, place.dropout
        self.mask = place.mask
        self.score = place.score(
            heads=heads, query_dim=head_dim, key_dim=head_dim, length=place.length
        )
        linear = partial(Linear, dim, dim, bias=place.bias)
        self.query = linear(std=place.std) if self.score.query else None
        self.key = linear(std=place.std) if self.score.key else None
        self.value = linear(std=place.std)
        self.out = linear(std=place.out_std)
        self.normalizer = place.normalizer
        self.draws = Stream()
        softmax, ranges = place.normalizer.fused, place.mask.ranges
        self.kernel = place.kernel.resolve(
            Parts(self.score, place.pos, softmax=softmax, ranges=ranges)
        )
        # A list while `recording` collects the attention weights, else None.
        self.recorded: list[Tensor] | None = None

    @property
    def selects(self) -> bool:
        return self.recorded is None

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


class CrossAttention(MultiHeadAttention):
    """Every position of a sequence attends to all positions of another, the memory.

    There is no distance between two sequences, so no mask and no positions act here (see
    ablate.pos_enc).
    """

    mixes = False
    reads_memory = True

    def __init__(self, place: Place):
        dim, heads = place.dim, place.heads
        pos = NoPosEnc(dim=dim, heads=heads, head_dim=dim // heads, length=place.length, depth=1)
        super().__init__(replace(place, mask=NoMask(causal=False), pos=pos))
        self.pos = pos

    @property
    def reads_input(self) -> bool:  # type: ignore[override]
        return self.score.query

    def read(self, source: Tensor) -> State:
        """b j d -> keys and values for `Memory`; the keys are prepared by the score, unless it is a
        dot product, whose kernels take the plain keys.
        """
        k, v = self.keys_and_values(source)
        return (k if self.score.lowers else self.score.keys(k)), v

    def forward(self, x: Tensor, context: Context) -> Tensor:
        assert context.memory is not None
        k, v = context.memory.states[self]
        prepared = None if self.score.lowers else k
        q, keep = self.queries(x), context.memory.keep
        return self.attend(q, k, v, self.pos, keep=keep, prepared=prepared, use=context.use)


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
