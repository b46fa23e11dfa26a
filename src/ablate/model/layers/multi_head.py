"""Multi-head attention with any score (Vaswani et al. 2017, section 3.2.2).

https://arxiv.org/abs/1706.03762. Queries, keys and values (Q, K, V; QKV) are projected for each
head, the score compares queries and keys, a kernel averages the values, and the output projection
joins the heads.

kv_heads: keys and values of fewer heads, each for several heads of queries in turn (grouped-query
attention, GQA: Ainslie et al. 2023, https://arxiv.org/abs/2305.13245); 1: multi-query attention
(MQA: Shazeer 2019, https://arxiv.org/abs/1911.02150).
softcap: a score s becomes c tanh(s / c) (Gemma 2, section 2, https://arxiv.org/abs/2408.00118).
sink: one more key, whose value is zero: exp(s_j) / (exp(sink) + sum_k exp(s_k)); "zero": its score
is 0, softmax plus one (Miller 2023, "Attention is off by one"); "learned": a score of each head
(gpt-oss, https://arxiv.org/abs/2508.10925), which starts at 0.
output_gate: the context of a head times sigmoid(x W), one number for each head ("head") or for each
of its features ("element") (Qiu et al. 2025, https://arxiv.org/abs/2505.06708).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Literal, TypedDict, Unpack

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor, nn

from ablate.config.conflicts import Conflict
from ablate.config.rules import Positive, Width
from ablate.kernel import AttentionInputs, attention_weights, every_head
from ablate.kernel.interface.documents import Documents
from ablate.model.layers.layer import Context, Layer, LayerSpec, LayerTraits, State
from ablate.model.layers.linear import Linear
from ablate.model.layers.qk_norm import QKNorm, qk_norms
from ablate.model.mask.none import NoMask
from ablate.pos_enc import PosEnc
from ablate.pos_enc.none import NoPosEnc
from ablate.random.draws import Stream


class AttentionKeys(TypedDict, total=False):
    """The keys of attention; of another mixer those that its YAML has."""

    kv_heads: Width | None
    qk_norm: QKNorm | None
    softcap: Positive | None
    sink: Literal["zero", "learned"] | None
    output_gate: Literal["head", "element"] | None


class MultiHeadAttention(Layer):
    """Q, K, V and output projections, score and kernel; self-attention is model/mixer/attention.py.

    `score` makes the score from heads, query_dim, key_dim and length. For a score that does not use
    the query (or key) this projection does not exist.
    """

    traits = LayerTraits(attends=True, reads_positions=True, reads_mask=True, caches=True)
    needs_if: ClassVar[Mapping[str, str]] = {
        "model.mixer.softcap": "softcap",
        "model.mixer.sink": "sink",
        "model.dropout": "dropout",
    }
    conflicts: ClassVar[tuple[Conflict, ...]] = (
        Conflict(
            lambda c: (
                c("model.mixer.kv_heads") is not None
                and c("model.heads") % c("model.mixer.kv_heads") != 0
            ),
            "model.mixer.kv_heads={model.mixer.kv_heads} does not divide model.heads={model.heads}",
        ),
        Conflict(
            lambda c: (
                c("model.mixer.qk_norm") is not None
                and not (
                    c.declares("model.attention", "query") and c.declares("model.attention", "key")
                )
            ),
            "model.mixer.qk_norm={model.mixer.qk_norm} normalizes queries and keys, which"
            " model.attention={model.attention} does not compare; set model.mixer.qk_norm=null",
        ),
        Conflict(
            lambda c: (
                c("model.mixer.sink") is not None
                and c.attribute("model.normalizer", "shares") is False
            ),
            "model.mixer.sink={model.mixer.sink} adds a key that shares the weights, and the"
            " weights of model.normalizer={model.normalizer} are independent; use softmax,"
            " sparsemax or entmax15, or model.mixer.sink=null",
        ),
    )

    def __init__(self, place: LayerSpec, **keys: Unpack[AttentionKeys]):
        super().__init__()
        self.attention_keys = keys
        dim, heads = place.dim, place.heads
        assert dim % heads == 0
        self.head_dim = head_dim = dim // heads
        self.heads, self.layer, self.dropout = heads, place.layer, place.dropout
        self.kv_heads = keys.get("kv_heads") or heads
        assert heads % self.kv_heads == 0
        self.mask = place.mask
        self.score = place.score(
            heads=heads, query_dim=head_dim, key_dim=head_dim, length=place.length
        )
        linear = partial(Linear, dim, bias=place.bias)
        width = self.kv_heads * head_dim
        self.query = linear(dim, std=place.std) if self.score.query else None
        self.key = linear(width, std=place.std) if self.score.key else None
        self.value = linear(width, std=place.std)
        self.out = linear(dim, std=place.out_std)
        compares = self.score.query and self.score.key
        self.query_norm, self.key_norm = qk_norms(
            keys.get("qk_norm") if compares else None,
            head_dim,
            heads=heads,
            kv_heads=self.kv_heads,
            length=place.length,
        )
        self.softcap = keys.get("softcap")
        self.query_scale = place.query_scale
        sink = keys.get("sink")
        self.sink = None if sink is None else Sink(heads, learned=sink == "learned")
        gates = {None: 0, "head": heads, "element": dim}[keys.get("output_gate")]
        self.output_gate = linear(gates, std=place.std) if gates else None
        self.normalizer = place.normalizer
        self.draws = Stream()
        own = {"softcap": self.softcap, "sink": sink, "dropout": place.dropout}
        needs = frozenset(feature for feature, value in own.items() if value)
        parts = (self.score, place.pos, place.normalizer, place.mask)
        self.kernel = place.kernel.resolve(needs.union(*(part.needs for part in parts)))
        # A list while `recording` collects the attention weights, else None.
        self.recorded: list[Tensor] | None = None

    @property
    def selects(self) -> bool:
        return self.recorded is None

    @property
    def random(self) -> bool:
        """Whether it draws random numbers."""
        return self.training and (self.dropout > 0 or self.normalizer.samples)

    def projected(
        self, x: Float[Tensor, "b i d"]
    ) -> tuple[
        Float[Tensor, "b {self.heads} i _"],
        Float[Tensor, "b {self.kv_heads} i _"],
        Float[Tensor, "b {self.kv_heads} i k"],
    ]:
        """Queries, keys and values of the same positions.

        Under autocast by one product: it converts the input once, not three times, and adds up no
        gradients of it. In float32 that is not faster: docs/explanation/negative-results.md.
        """
        maps: tuple[nn.Linear | None, ...] = (self.query, self.key, self.value)
        there = [linear for linear in maps if linear is not None]
        plain = all(type(linear) is Linear for linear in there)  # trainer.precision=fp8-mixed
        # The meta device has no autocast.
        if x.is_meta or not (plain and torch.is_autocast_enabled(x.device.type)):
            return self.queries(x), self.keys(x), self.values(x)
        weights: list[Tensor] = [linear.weight for linear in there]
        biases: list[Tensor] = [linear.bias for linear in there if linear.bias is not None]
        y = F.linear(x, torch.cat(weights), torch.cat(biases) if biases else None)
        widths = [0 if linear is None else linear.out_features for linear in maps]
        heads = (self.heads, self.kv_heads, self.kv_heads)
        q, k, v = (
            rearrange(part, "b i (h k) -> b h i k", h=h)
            for part, h in zip(y.split(widths, dim=-1), heads, strict=True)
        )
        return self.scaled(q), self.key_norm(k), v

    def queries(self, x: Float[Tensor, "b i d"]) -> Float[Tensor, "b {self.heads} i k"]:
        return self.scaled(self._heads(self.query, x, self.heads))

    def scaled(self, q: Float[Tensor, "b h i k"]) -> Float[Tensor, "b h i k"]:
        """Queries as they are compared."""
        q = self.query_norm(q)
        return q if self.query_scale == 1 else q * self.query_scale

    def keys(self, x: Float[Tensor, "b j d"]) -> Float[Tensor, "b {self.kv_heads} j k"]:
        """Of width 0 if the score does not use them."""
        return self.key_norm(self._heads(self.key, x, self.kv_heads))

    def values(self, x: Float[Tensor, "b j d"]) -> Float[Tensor, "b {self.kv_heads} j k"]:
        return self._heads(self.value, x, self.kv_heads)

    def context(
        self,
        q: Float[Tensor, "b h i k"],
        k: Float[Tensor, "b _ j l"],
        v: Float[Tensor, "b g j w"],
        pos: PosEnc,
        *,
        start: int = 0,
        keep: Bool[Tensor, "b j"] | None = None,
        documents: Documents | None = None,
        prepared: Float[Tensor, "b h j p"] | None = None,
        use: int = 0,
    ) -> Float[Tensor, "b h i w"]:
        """The output of each head. use: counts the uses of this layer in a pass; the other
        arguments as in AttentionInputs."""
        attend = AttentionInputs(
            q=q,
            k=k,
            v=v,
            score=self.score,
            mask=self.mask,
            pos=pos,
            layer=self.layer,
            start=start,
            keep=keep,
            documents=documents,
            prepared=prepared,
            normalizer=self.normalizer,
            dropout=self.dropout if self.training else 0.0,
            training=self.training,
            stream=self.draws.key(v, use) if self.random else None,
            softcap=self.softcap,
            sink=None if self.sink is None else self.sink(),
        )
        if self.recorded is not None:
            every = replace(attend.ungrouped(), training=False)
            self.recorded.append(attention_weights(every).detach())
        grouped = "groups" in self.kernel.provides and self.score.key and self.sink is None
        return self.kernel(attend if grouped else attend.ungrouped())

    def read_sequence(
        self,
        q: Float[Tensor, "b h i k"],
        k: Float[Tensor, "b _ j l"],
        v: Float[Tensor, "b g j w"],
        context: Context,
        first: int,
    ) -> Float[Tensor, "b h i w"]:
        """The output of each head over the queries' own sequence, from its row `first` on."""
        return self.context(
            q,
            k,
            v,
            context.pos,
            start=context.start + first,
            keep=context.keep,
            documents=context.documents,
            use=context.use,
        )

    def join(
        self, context: Float[Tensor, "b h i k"], x: Float[Tensor, "b i d"]
    ) -> Float[Tensor, "b i d"]:
        """The context and the input of the layer -> its output."""
        if self.output_gate is not None:
            gates = self.output_gate(x).sigmoid()
            context = context * rearrange(gates, "b i (h k) -> b h i k", h=self.heads)
        return self.out(rearrange(context, "b h i k -> b i (h k)"))

    def _heads(
        self, projection: nn.Linear | None, x: Float[Tensor, "b i d"], heads: int
    ) -> Float[Tensor, "b {heads} i k"]:
        """Width 0 without a projection."""
        if projection is None:
            return x.new_zeros(x.shape[0], heads, x.shape[1], 0)
        return rearrange(projection(x), "b i (h k) -> b h i k", h=heads)


class Sink(nn.Module):
    """The score of one more key in each head."""

    def __init__(self, heads: int, *, learned: bool):
        super().__init__()
        score = torch.zeros(heads)
        if learned:
            self.score = nn.Parameter(score)
        else:
            self.register_buffer("score", score, persistent=False)

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.score)

    def forward(self) -> Float[Tensor, " h"]:
        return self.score


class CrossAttention(MultiHeadAttention):
    """Every position of a sequence attends to all positions of another, the memory.

    Positions of two sequences have no distance, so no mask and no positions act here (see
    ablate.pos_enc).
    """

    traits = LayerTraits(mixes=False, attends=True)

    def __init__(self, place: LayerSpec, **keys: Unpack[AttentionKeys]):
        dim, heads = place.dim, place.heads
        pos = NoPosEnc(dim=dim, heads=heads, head_dim=dim // heads, length=place.length, depth=1)
        super().__init__(replace(place, mask=NoMask(causal=False), pos=pos), **keys)
        self.pos = pos

    @property
    def reads_input(self) -> bool:  # type: ignore[override]
        return self.score.query or self.output_gate is not None

    def read(self, source: Float[Tensor, "b j d"]) -> State:
        """Keys and values for `Memory`; the keys are prepared by the score, unless it is a
        dot product, whose kernels take the plain keys.
        """
        k, v = self.keys(source), self.values(source)
        if "dot_product" not in self.score.needs:
            k, v = self.score.keys(every_head(k, self.heads)), every_head(v, self.heads)
        return k, v

    def forward(self, x: Float[Tensor, "b i d"], context: Context) -> Float[Tensor, "b i d"]:
        assert context.memory is not None
        k, v = context.memory.states[self]
        prepared = None if "dot_product" in self.score.needs else k
        q, keep = self.queries(x), context.memory.keep
        y = self.context(q, k, v, self.pos, keep=keep, prepared=prepared, use=context.use)
        return self.join(y, x)


@contextmanager
def recording(model: nn.Module) -> Iterator[list[list[Float[Tensor, "b h i j"]]]]:
    """Collect the attention weights of every layer while the block runs.

    A layer is any module with an attribute `recorded`, a list to append to or None. The weights are
    computed in addition to the kernel's output, by the reference formula; results do not change.
    """
    layers: list[Any] = [m for m in model.modules() if hasattr(m, "recorded")]
    for layer in layers:
        layer.recorded = []
    try:
        yield [layer.recorded for layer in layers]
    finally:
        for layer in layers:
            layer.recorded = None
