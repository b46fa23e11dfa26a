"""Attention backends: interchangeable implementations of one function.

The reference kernel is the specification; every other kernel returns the same values and gradients,
or rejects the layer. Letters: b batch, i query, j key, h heads, k head width.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor
from torch.nn.functional import pad

from ablate.config.conflicts import Conflict
from ablate.errors import UserError
from ablate.kernel.interface.documents import Documents
from ablate.kernel.interface.edges import Edges
from ablate.kernel.interface.mask import Mask, combine
from ablate.kernel.interface.normalizer import Normalizer, wrong_shape
from ablate.kernel.interface.score import Score
from ablate.pos_enc import PosEnc
from ablate.random.draws import Source
from ablate.random.dropout import dropout


def interpreted() -> bool:
    """Whether Triton's interpreter is on, which runs on a CPU: slow, and meant for tests."""
    return os.environ.get("TRITON_INTERPRET") == "1"


@dataclass
class AttentionInputs:
    """The inputs of one attention layer for a whole batch: everything that a kernel needs."""

    q: Float[Tensor, "b h i k"]  # width 0 if the score does not use the query
    k: Float[Tensor, "b g j l"]  # the same for the key; g = h, but in kernels that provide "groups"
    v: Float[Tensor, "b g j w"]
    score: Score
    normalizer: Normalizer
    mask: Mask
    pos: PosEnc
    layer: int  # index of the layer, for encodings with a table per layer
    start: int = 0  # absolute position of the first query
    first_key: int = 0  # absolute position of the first key
    keep: Bool[Tensor, "b j"] | None = None  # True = a real key, False = padding
    documents: Documents | None = None  # of all positions, if attention stays within them
    prepared: Float[Tensor, "b h j p"] | None = None  # score.keys(k), if already computed
    edges: Edges | None = None  # of a graph, if queries attend only along them
    factors: Float[Tensor, "b 1 i j"] | None = None  # of the weights; a key with factor 0 is masked
    softcap: float | None = None  # c: a score s becomes c tanh(s / c), before bias and mask
    sink: Float[Tensor, " h"] | None = None  # the score of one more key, whose value is zero
    dropout: float = 0.0  # on the attention weights; 0 in evaluation
    training: bool = False  # a normalizer may sample its weights in training
    # Key of the random stream of `dropout` and such a normalizer.
    stream: Int[Tensor, ""] | None = None

    @property
    def source(self) -> Source:
        """The random numbers of these queries and keys."""
        assert self.stream is not None
        return Source(self.stream, self.start, self.first_key)

    @property
    def queries(self) -> int:
        return self.q.shape[2]

    @property
    def keys(self) -> int:
        return self.k.shape[2]

    def scores(self) -> Float[Tensor, "b h i j"]:
        """The scores, before bias and mask."""
        if self.prepared is None:
            return self.score(self.q, self.k)
        return self.score.compare(self.q, self.prepared)

    def ungrouped(self) -> AttentionInputs:
        """The same with keys and values repeated for every head of the queries."""
        k, v = (every_head(x, self.q.shape[1]) for x in (self.k, self.v))
        return replace(self, k=k, v=v)

    def rows(self, first: int, last: int) -> AttentionInputs:
        """Restrict to the queries `first` to `last` (exclusive) and the keys they may attend to."""
        here = self.first_key
        begin, end = self.mask.span(self.start + first, self.start + last, here + self.keys)
        begin, end = max(begin - here, 0), max(end - here, 0)
        if not self.score.key:  # such a score identifies keys by their position, counted from 0
            assert here == 0
            begin = 0
        prepared, factors, edges = self.prepared, self.factors, self.edges
        if edges is not None:  # they index keys from 0; the mask of a graph allows every key
            assert begin == 0
            edges = edges.rows(first, last)
        return replace(
            self,
            q=self.q[:, :, first:last],
            k=self.k[:, :, begin:end],
            v=self.v[:, :, begin:end],
            start=self.start + first,
            first_key=here + begin,
            keep=None if self.keep is None else self.keep[:, begin:end],
            edges=edges,
            prepared=None if prepared is None else prepared[:, :, begin:end],
            factors=None if factors is None else factors[:, :, first:last, begin:end],
        )

    def positions(self) -> tuple[Int[Tensor, " i"], Int[Tensor, " j"]]:
        """Absolute positions of the queries and of the keys."""
        device = self.v.device
        return (
            torch.arange(self.start, self.start + self.queries, device=device),
            torch.arange(self.first_key, self.first_key + self.keys, device=device),
        )

    def bias_and_mask(
        self,
    ) -> tuple[
        Float[Tensor, "#b #h #i #j"] | None, Bool[Tensor, "i j"] | Bool[Tensor, "b 1 #i j"] | None
    ]:
        """The bias of the scores (None: none) and the mask, True = may attend (None: no mask)."""
        i, j = self.positions()
        bias = self.pos.bias(self.q, i, j, self.layer)
        allowed = combine(self.mask, i, j, self.keep, self.documents)
        if self.edges is not None:
            along = torch.zeros(self.queries, self.keys, dtype=torch.bool, device=i.device)
            along[self.edges.query, self.edges.key] = True
            allowed = along if allowed is None else along & allowed
        if self.factors is not None:
            near = self.factors > 0
            allowed = near if allowed is None else near & allowed
        return bias, allowed


def every_head(x: Float[Tensor, "b g j k"], heads: int) -> Float[Tensor, "b {heads} j k"]:
    """Each of the g heads for heads / g in turn."""
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], 1)


def readable(x: Shaped[Tensor, ...]) -> bool:
    """Whether a decision may depend on the values of x: a GPU would be waited for, and a compiled
    graph would break."""
    return x.device.type == "cpu" and not torch.compiler.is_compiling()


# Features that a layer may need of a kernel: a component names them in `needs`, or in `needs_if`
# after the key that needs one, unless its value is null, false or 0.
FEATURES = {
    "dot_product": "scaled dot products",
    "sum": "scores that are sums over a width",
    "score": "scores other than scaled dot products and sums over a width",
    "softcap": "soft capping of scores",
    "sink": "a sink, a key without a value",
    "distance_bias": "a bias of the scores",
    "bias": "a bias that is not a function of the distance j - i",
    "normalizer": "a normalizer other than softmax",
    "weights": "access to the attention weights",
    "dropout": "dropout of the attention weights",
    "range": "keys other than neighbors in a graph",
    "mask": "a mask with several ranges of keys for a query",
    "edges": "the edges of a graph",
}


class Kernel:
    """An attention backend: computes `AttentionInputs`. result.json records `name` for each
    layer."""

    name: ClassVar[str]
    # The features that it computes, and further ones: "groups" (keys and values may have fewer
    # heads than queries, each for several of theirs in turn), "float64", "cpu", "interpreter"
    # (Triton's).
    provides: ClassVar[frozenset[str]] = frozenset(FEATURES) | {"float64", "cpu"}
    # Their names in messages.
    features: ClassVar[Mapping[str, str]] = FEATURES
    conflicts: ClassVar[tuple[Conflict, ...]] = (
        Conflict(
            lambda c: c.option("kernel") != "auto" and not c.has("model.attention"),
            "kernel={kernel} has no effect on model={model}, which has no attention of ablate's;"
            " use kernel=auto",
        ),
        Conflict(
            lambda c: bool(c.unsupported),
            "kernel={kernel} does not support {:unsupported}; use kernel=auto",
        ),
        Conflict(
            lambda c: (
                "float64" not in c.attribute("kernel", "provides")
                and c("trainer.precision") == "64-true"
            ),
            "kernel={kernel} computes in float32, which trainer.precision=64-true excludes; use"
            " kernel=auto",
        ),
        Conflict(
            lambda c: (
                "cpu" not in c.attribute("kernel", "provides")
                and not ("interpreter" in c.attribute("kernel", "provides") and interpreted())
                and c("trainer.accelerator") in ("cpu", "mps", "tpu")
            ),
            "kernel={kernel} runs on GPUs of NVIDIA and AMD, and trainer.accelerator="
            "{trainer.accelerator} is none; use kernel=auto, or trainer=gpu",
        ),
    )
    # Whether the whole model, this kernel included, is compiled in training; set by the training.
    # A kernel must record nothing in a compiled pass, or its blocks cannot be recomputed.
    compiled: bool = False

    def unavailable(self) -> str | None:
        """Why this machine cannot run this kernel; None if it can."""
        return None

    def resolve(self, needs: frozenset[str]) -> Kernel:
        """The kernel that a layer with these needs will use; UserError if there is none."""
        if lacking := needs - self.provides:
            named = ", ".join(FEATURES[feature] for feature in sorted(lacking))
            raise UserError(f"kernel={self.name} does not support {named}; use kernel=auto")
        if reason := self.unavailable():
            raise UserError(f"kernel={self.name} cannot run here: {reason}; use kernel=auto")
        return self

    def __call__(self, attend: AttentionInputs) -> Float[Tensor, "b h {attend.queries} w"]:
        """The context of every query."""
        raise NotImplementedError

    def describe(self) -> str:
        """The implementation that ran, for result.json."""
        return self.name


def attention_weights(
    attend: AttentionInputs, scores: Float[Tensor, "b h i j"] | None = None
) -> Float[Tensor, "b h {attend.queries} {attend.keys}"]:
    """The weights: scores normalized over the allowed keys, times the factors, if any."""
    scores = attend.scores() if scores is None else scores
    if scores.shape != (shape := (*attend.q.shape[:3], attend.keys)):  # it would be broadcast
        raise wrong_shape(attend.score.slot, attend.score, scores.shape, shape)
    if attend.softcap is not None:
        scores = attend.softcap * (scores / attend.softcap).tanh()
    bias, allowed = attend.bias_and_mask()
    if bias is not None:
        scores = scores + bias
    if attend.training and attend.normalizer.samples:
        scores = attend.normalizer.perturb(scores, attend.source)
    if attend.sink is None:
        weights = attend.normalizer(scores, allowed, training=attend.training)
    else:
        sink = attend.sink[:, None, None].to(scores.dtype).expand(*scores.shape[:-1], 1)
        scores = torch.cat([scores, sink], dim=-1)
        allowed = None if allowed is None else pad(allowed, (0, 1), value=True)
        weights = attend.normalizer(scores, allowed, training=attend.training)[..., :-1]
    return weights if attend.factors is None else weights * attend.factors


def mix(attend: AttentionInputs, weights: Float[Tensor, "b h i j"]) -> Float[Tensor, "b h i w"]:
    """The context: the weighted sum of the values, plus any term of the positions."""
    if attend.dropout:
        weights = dropout(weights, attend.dropout, attend.source)
    context = weights @ attend.v
    if "weights" in attend.pos.needs:
        i, j = attend.positions()
        context = context + attend.pos.values(weights, i, j, attend.layer)
    return context
