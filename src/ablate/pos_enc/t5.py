"""T5 relative position bias: the score gains a learned number per head and bucket of j - i.

Raffel et al. 2020, "Exploring the limits of transfer learning with a unified text-to-text
transformer", section 2.1, https://arxiv.org/abs/1910.10683. As in its code, half of the buckets
contain one distance each, the other half ranges that grow logarithmically up to `max_distance`, and
everything beyond is in the last; a model that looks both ways has one such set per direction. All
layers share the bias. Initialized from a normal distribution of variance 1 / d, as in the T5 of
Hugging Face transformers. T5's dot product has no scale: that is model.attention=dot here.
"""

from typing import Annotated, Any

import torch
from einops import rearrange
from jaxtyping import Float, Integer
from torch import Tensor, nn
from torch.nn.functional import embedding

from ablate.config.rules import Count, Int
from ablate.errors import UserError
from ablate.pos_enc import PosEnc


class T5(PosEnc):
    """A table with a number for each of `buckets` and each head."""

    needs = frozenset({"distance_bias"})
    edges: Integer[Tensor, " edges"]

    def __init__(
        self, *, buckets: Annotated[int, Int(2, 2**31 - 1)], max_distance: Count, **sizes: Any
    ) -> None:
        super().__init__(**sizes)
        directions = 1 if self.causal else 2
        self.each_way = buckets // directions
        if buckets < 2 * directions or buckets % directions:
            raise UserError(
                f"pos_enc.buckets={buckets} must be "
                + ("at least 2" if self.causal else "an even number of at least 4")
            )
        if max_distance <= self.each_way // 2:
            raise UserError(
                f"pos_enc.max_distance={max_distance} must be more than {self.each_way // 2}, the "
                f"distances that have a bucket each when pos_enc.buckets={buckets}"
            )
        edges = torch.tensor(bucket_edges(self.each_way, max_distance))
        self.register_buffer("edges", edges, persistent=False)
        self.table = nn.Parameter(torch.empty(buckets, self.heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.table, std=self.dim**-0.5)

    def bias(
        self,
        q: Float[Tensor, "b h i k"],
        i: Integer[Tensor, " i"],
        j: Integer[Tensor, " j"],
        layer: int,
    ) -> Float[Tensor, "#b #h #i j"]:
        # Looked up once for each distance, not for each pair; the last query comes first. Rounded
        # last: the gradient of a distance is the sum over its pairs, in the precision of the table.
        ahead = torch.cat([j[:1] - i.flip(0), j[1:] - i[:1]])
        of_distance = embedding(self.bucket(ahead), self.table).mT
        return of_distance.unfold(-1, len(j), 1).flip(1)[None].to(q.dtype)

    def by_distance(
        self, q: Float[Tensor, "b h i k"], ahead: Integer[Tensor, " *n"], layer: int
    ) -> tuple[Float[Tensor, "#b #h #i r"], Integer[Tensor, " *n"]]:
        return rearrange(self.table, "r h -> 1 h 1 r"), self.bucket(ahead)

    def bucket(self, ahead: Integer[Tensor, " *n"]) -> Integer[Tensor, " *n"]:
        """The bucket of every distance j - i: 0 and those behind first, then those ahead.

        With causal attention, keys ahead share the bucket of distance 0, because they are masked.
        """
        behind = torch.bucketize((-ahead).clamp(min=0), self.edges, right=True)
        if self.causal:
            return behind
        beyond = self.each_way + torch.bucketize(ahead.clamp(min=0), self.edges, right=True)
        return torch.where(ahead > 0, beyond, behind)


def bucket_edges(buckets: int, max_distance: int) -> list[int]:
    """The smallest distance of every bucket but the first.

    Bucket single + m begins at the distance single * (max_distance / single)^(m / (buckets -
    single)). In integers, because a logarithm in float32 may miss a distance at an edge.
    """
    single = buckets // 2
    edges = list(range(1, single + 1))
    ranges = buckets - single
    for m in range(1, ranges):
        distance = edges[-1]
        least = max_distance**m * single ** (ranges - m)
        while distance**ranges < least:
            distance += 1
        edges.append(distance)
    return edges
