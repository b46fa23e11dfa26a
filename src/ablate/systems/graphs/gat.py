"""Graph attention network (GAT): every node attends to its neighbors (Velickovic et al. 2018).

https://arxiv.org/abs/1710.10903. A layer is a linear map, attention with any score along the edges,
and ELU; heads are concatenated, those of the last layer averaged. With model.mask=none every node
attends to every other, and the graph is not used.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, TypedDict, Unpack

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor, nn

from ablate.config.conflicts import Conflict
from ablate.config.rules import Depth, Share, Width
from ablate.kernel import AttentionInputs, Kernel, attention_weights, readable
from ablate.kernel.auto import Auto
from ablate.kernel.interface.edges import Edges
from ablate.machine.terminal.say import say
from ablate.model.attention import Score
from ablate.model.base import Model
from ablate.model.layers.linear import Bias
from ablate.model.mask import Mask
from ablate.model.normalizer import Normalizer
from ablate.pos_enc import PosEnc
from ablate.random.draws import Stream
from ablate.random.dropout import Dropout
from ablate.systems.graphs.sparse import Sparse

# The most nodes of a graph with attention maps, which have nodes^2 numbers per head.
MAPPED = 5000


class Glorot(nn.Linear):
    """Weights initialized as in Glorot and Bengio 2010, bias zero."""

    def reset_parameters(self) -> None:
        nn.init.xavier_uniform_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)


class LayerKeys(TypedDict):
    """The keys of a model's YAML that GraphAttention reads."""

    normalizer: Normalizer
    kernel: Kernel
    shared: bool
    residual: bool
    dropout: Share
    bias: bool


class GraphAttention(nn.Module):
    """One layer: d is `width` if the heads are averaged, else heads times that.

    shared: one projection serves as query, key and value, as published.
    """

    def __init__(
        self,
        inputs: int,
        width: int,
        *,
        heads: int,
        average: bool,
        score: Callable[..., Score],
        mask: Mask,
        pos: PosEnc,
        nodes: int,
        **keys: Unpack[LayerKeys],
    ):
        super().__init__()
        shared, residual, dropout = keys["shared"], keys["residual"], keys["dropout"]
        normalizer, kernel = keys["normalizer"], keys["kernel"]
        self.heads, self.average, self.mask, self.pos = heads, average, mask, pos
        self.residual, self.weights_dropout, self.normalizer = residual, dropout, normalizer
        self.score = score(heads=heads, query_dim=width, key_dim=width, length=nodes)
        projection = partial(Glorot, inputs, heads * width, bias=False)
        self.query = projection() if self.score.query and not shared else None
        self.key = projection() if self.score.key and not shared else None
        self.value = projection()
        outputs = width if average else heads * width
        self.carry = (
            Glorot(inputs, outputs, bias=False) if residual and inputs != outputs else nn.Identity()
        )
        self.bias = Bias(outputs) if keys["bias"] else nn.Identity()
        self.dropout = Dropout(dropout)
        self.draws = Stream()
        needs = self.score.needs.union(pos.needs, normalizer.needs, mask.needs)
        needs |= frozenset({"dropout"} if dropout else ())
        sparse = isinstance(kernel, Auto) and needs <= Sparse.provides
        self.kernel = Sparse() if sparse else kernel.resolve(needs)
        # A list while `recording` collects the attention weights, else None.
        self.recorded: list[Tensor] | None
        if nodes <= MAPPED:
            self.recorded = None

    def forward(self, x: Float[Tensor, "n inputs"], edges: Edges | None) -> Float[Tensor, "n d"]:
        """edges: None if every node attends to every other."""
        x = self.dropout(x)
        v = self._heads(self.value(x))
        random = self.training and (self.weights_dropout > 0 or self.normalizer.samples)
        attend = AttentionInputs(
            q=self._projected(self.score.query, self.query, x, v),
            k=self._projected(self.score.key, self.key, x, v),
            v=v,
            score=self.score,
            mask=self.mask,
            pos=self.pos,
            layer=0,
            edges=edges,
            normalizer=self.normalizer,
            dropout=self.weights_dropout if self.training else 0.0,
            training=self.training,
            stream=self.draws.key(v) if random else None,
        )
        recorded: list[Tensor] | None = getattr(self, "recorded", None)
        if recorded is not None:
            recorded.append(attention_weights(replace(attend, training=False)).detach())
        y = self.kernel(attend)[0]
        y = y.mean(0) if self.average else rearrange(y, "h n k -> n (h k)")
        return self.bias(y + self.carry(x) if self.residual else y)

    def _projected(
        self,
        read: bool,
        projection: Glorot | None,
        x: Float[Tensor, "n inputs"],
        v: Float[Tensor, "1 h n k"],
    ) -> Float[Tensor, "1 h n _"]:
        """Width 0 if the score does not use it."""
        if not read:
            return v[..., :0]
        return v if projection is None else self._heads(projection(x))

    def _heads(self, x: Float[Tensor, "n hk"]) -> Float[Tensor, "1 {self.heads} n k"]:
        return rearrange(x, "n (h k) -> 1 h n k", h=self.heads)


class GAT(Model):
    """A graph in, logits of the classes of every node out."""

    outputs = ("classes of nodes",)
    needs_if: ClassVar[Mapping[str, str]] = {"model.dropout": "dropout"}
    conflicts = (
        Conflict(
            lambda c: c.declares("model.mask", "restricts"),
            "model.mask={model.mask} requires ordered positions; graph nodes are unordered: use"
            " model.mask=neighbors or none",
        ),
        Conflict(
            lambda c: (
                c.declares("model.attention", "query") and not c.declares("model.attention", "key")
            ),
            "model.attention={model.attention} requires ordered positions; graph nodes are"
            " unordered: use another score, such as model.attention=gat",
        ),
        Conflict(
            lambda c: c("model.depth") == 1,
            "model.depth=1 leaves no hidden layer for model.dim and model.heads; model=gat has at"
            " least 2 layers",
        ),
        Conflict(
            lambda c: (
                not c("model.shared")
                and not c.declares("model.attention", "query")
                and not c.declares("model.attention", "key")
            ),
            "model.shared=false has no effect with model.attention={model.attention}, which"
            " has neither queries nor keys",
        ),
        Conflict(
            lambda c: c.processes > 1,
            "data={data} is one graph, which one process trains; use trainer=cpu or trainer=gpu"
            " with trainer.devices=1",
        ),
    )
    positions = None
    kinds = ("a graph",)

    def __init__(
        self,
        *,
        features: int,
        classes: int,
        nodes: int,
        dim: Width,
        depth: Depth,
        heads: Width,
        out_heads: Width,
        attention: Callable[..., Score],
        mask: Callable[..., Mask],
        pos_enc: Callable[..., PosEnc],
        **layer: Unpack[LayerKeys],
    ):
        super().__init__()
        self.nodes = nodes
        self.mask = mask(causal=False)
        self.before: tuple[int, Tensor, Edges] | None = None
        widths = [features, *[dim] * (depth - 1)]
        self.layers = nn.ModuleList()
        for number, inputs in enumerate(widths, 1):
            last = number == depth
            count = out_heads if last else heads
            width = classes if last else dim // heads
            pos = pos_enc(dim=count * width, heads=count, head_dim=width, length=nodes, depth=1)
            self.layers.append(
                GraphAttention(
                    inputs,
                    width,
                    heads=count,
                    average=last,
                    score=attention,
                    mask=self.mask,
                    pos=pos,
                    nodes=nodes,
                    **layer,
                )
            )

    def forward(
        self, features: Float[Tensor, "n f"], edges: Int[Tensor, "2 e"]
    ) -> Float[Tensor, "n classes"]:
        """edges: a node and a node that it attends to, each pair once, with self-loops."""
        x = features
        seen = self._sorted(edges, len(features)) if "edges" in self.mask.needs else None
        for number, layer in enumerate(self.layers, 1):
            x = layer(x, seen)
            x = x if number == len(self.layers) else F.elu(x)
        return x

    def figures(self, example: dict[str, Any], folder: Path, layer: int | None) -> list[Path]:
        if self.nodes > MAPPED:
            say(f"a graph of {self.nodes:,} nodes: attention is plotted for at most {MAPPED:,}")
        return []

    def _sorted(self, pairs: Int[Tensor, "2 e"], nodes: int) -> Edges:
        """On a CPU those of the pass before, if it had the same graph: to compare two graphs takes
        a hundredth of the time of sorting one."""
        if not readable(pairs):
            return Edges.of(pairs, queries=nodes, keys=nodes)
        if self.before is None or self.before[0] != nodes or not pairs.equal(self.before[1]):
            with torch.inference_mode(False):  # a training step may be the next to read them
                self.before = nodes, pairs.clone(), Edges.of(pairs, queries=nodes, keys=nodes)
        return self.before[2]
