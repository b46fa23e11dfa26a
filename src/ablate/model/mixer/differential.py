"""Differential attention: the difference of two attention maps.

Ye et al. 2024, "Differential transformer", https://arxiv.org/abs/2410.05258, section 2.1: a head
has two queries and two keys of half its width each, and reads (A1 - lambda A2) V, normalized by its
root mean square and times 1 - `initial`; lambda = exp(lq1 . lk1) - exp(lq2 . lk2) + initial.
`initial` is one number for all layers here; in the paper it is 0.8 - 0.6 exp(-0.3 (layer - 1)).
Both maps come from one call of the kernel: the output of a head is linear in its weights.
"""

from dataclasses import replace
from typing import Annotated, Unpack

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from ablate.config.conflicts import Conflict
from ablate.config.rules import Real
from ablate.model.layers.layer import Context, LayerSpec
from ablate.model.layers.multi_head import AttentionKeys, MultiHeadAttention

STD = 0.1  # of the vectors of lambda


class Difference(nn.Module):
    """lambda, one number for all heads of a layer, from four vectors of `width`."""

    vector_parameters = ("vectors",)

    def __init__(self, width: int, initial: float):
        super().__init__()
        self.initial = initial
        self.vectors = nn.Parameter(torch.empty(4, width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.vectors, std=STD)

    def forward(self) -> Float[Tensor, ""]:
        q1, k1, q2, k2 = self.vectors
        return (q1 @ k1).exp() - (q2 @ k2).exp() + self.initial


class DifferentialAttention(MultiHeadAttention):
    """As many parameters as attention with as many heads, but for lambda and the norm."""

    revision = 2
    conflicts = (
        Conflict(
            lambda c: c("model.dim") % (2 * c("model.heads")) != 0,
            "model.mixer=differential halves the width of a head, here model.dim={model.dim} /"
            " model.heads={model.heads}, which must be even",
        ),
        Conflict(
            lambda c: (
                c.declares("pos_enc", "rotates") and c("model.dim") // c("model.heads") % 4 != 0
            ),
            "pos_enc={pos_enc} rotates pairs of dimensions, and model.mixer=differential halves the"
            " width of a head, model.dim={model.dim} / model.heads={model.heads}, which must be a"
            " multiple of 4",
        ),
        Conflict(
            lambda c: (
                c.attribute("pos_enc", "acts_in") == "attention"
                and not c.declares("pos_enc", "rotates")
            ),
            "pos_enc={pos_enc} adds to the scores of model.heads, and model.mixer=differential has"
            " two scores a head; use pos_enc=rotary, or one that is added to the input",
        ),
    )

    def __init__(
        self,
        place: LayerSpec,
        *,
        initial: Annotated[float, Real(0, 1, below=True)],
        **keys: Unpack[AttentionKeys],
    ):
        assert not keys.keys() & {"kv_heads", "output_gate"}
        super().__init__(replace(place, heads=2 * place.heads), **keys)
        self.difference = Difference(self.head_dim, initial)
        self.norm = nn.RMSNorm(2 * self.head_dim)
        self.initial = initial

    def forward(self, x: Float[Tensor, "b i d"], context: Context) -> Float[Tensor, " b #i d"]:
        first, last = context.rows(x)
        q, k = self.queries(x[:, first:last]), self.keys(x)
        v = rearrange(self.value(x), "b j (h k) -> b h j k", k=2 * self.head_dim)
        new = context.positions(x)
        q, k = context.pos.rotate(q, k, new[first:last], new)
        if (earlier := context.recall(self)) is not None:
            k, v = (torch.cat(both, dim=2) for both in zip(earlier, (k, v), strict=True))
        context.remember(self, k, v)
        v = v.repeat_interleave(2, dim=1)
        y = self.read_sequence(q, k, v, context, first)
        positive, negative = rearrange(y, "b (h two) i k -> two b h i k", two=2)
        y = (1 - self.initial) * self.norm(positive - self.difference() * negative)
        return self.out(rearrange(y, "b h i k -> b i (h k)"))
