"""Self-attention: weights that depend on the input (model.attention and related groups).

Vaswani et al. 2017, section 3.2.2, https://arxiv.org/abs/1706.03762.
"""

from typing import Annotated, Unpack

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from ablate.config.conflicts import Conflict
from ablate.config.rules import Int
from ablate.errors import UserError
from ablate.kernel import every_head
from ablate.model.layers.channel_gate import ChannelGate
from ablate.model.layers.layer import Context, LayerSpec, State
from ablate.model.layers.multi_head import AttentionKeys, MultiHeadAttention
from ablate.model.layers.short_conv import ShortConvolution


class ValueResidual(nn.Module):
    """a v + b v1 with learned numbers a and b, which start at 1/2.

    v1: the values of the first block with a value residual, which are not changed.
    """

    def __init__(self) -> None:
        super().__init__()
        self.shares = nn.Parameter(torch.full((2,), 0.5))

    def reset_parameters(self) -> None:
        nn.init.constant_(self.shares, 0.5)

    def forward(self, v: Float[Tensor, "b g j k"], context: Context) -> Float[Tensor, "b g j k"]:
        ((step, first),) = context.first_values.items() or ((context.step, v),)
        if step == context.step:  # a recomputed block finds its own values as well
            context.first_values[step] = v
            # Not used here, but DDP waits for a gradient of every parameter.
            return v + 0 * self.shares.sum()
        if first.shape != v.shape:
            raise UserError(
                "model.mixer.value_residual=true adds the values of the first block to those of"
                " others, which have other heads; set the same heads and kv_heads for all"
            )
        return self.shares[0] * v + self.shares[1] * first


class Attention(MultiHeadAttention):
    """Every position attends to the positions of the same sequence.

    short_conv: queries, keys and values are x + a causal convolution of x over so many positions
    (ShortConvolution); null: none.
    key_shift: the key at a position is that of the token before it, so that one layer finds the
    token after an earlier one, as an induction head does with two layers (Olsson et al. 2022,
    https://arxiv.org/abs/2209.11895).
    value_residual: the values of the first block are added to those of later ones (Zhou et al.
    2024, https://arxiv.org/abs/2410.17897).
    value_embedding: the values of a head gain 2 sigmoid(w x) E[token]; w reads 12 channels of
    x and each layer has its own table E (modded-nanogpt, records 14 and 55; nanochat has them in
    every other layer).
    exclusive: the output of a head loses its part along the value of the query's position, o -
    (o . v) v / |v|^2 (exclusive self-attention, XSA: `orthog_projected_values` of x-transformers).
    """

    conflicts = (
        *(
            Conflict(
                lambda c, key=key: c.trait("model", "has_grid") and bool(c(f"model.mixer.{key}")),  # type: ignore[misc]
                f"model.mixer.{key}={{model.mixer.{key}}} applies to sequences only, and"
                f" model={{model}} reads an image; leave it out",
            )
            for key in ("short_conv", "key_shift")
        ),
        Conflict(
            lambda c: (
                bool(c("model.mixer.value_embedding")) and not c.trait("model", "embeds_values")
            ),
            "model.mixer.value_embedding=true: the layers of model={model} get no tokens; leave it"
            " out, or use model=gpt",
        ),
    )

    def __init__(
        self,
        place: LayerSpec,
        *,
        short_conv: Annotated[int, Int(2)] | None = None,
        key_shift: bool = False,
        exclusive: bool = False,
        value_residual: bool = False,
        value_embedding: bool = False,
        **keys: Unpack[AttentionKeys],
    ):
        super().__init__(place, **keys)
        self.shift, self.exclusive = int(key_shift and self.score.key), exclusive
        self.value_residual = ValueResidual() if value_residual else None
        # The model has the tables: value_embeddings of Context.
        self.value_gate = ChannelGate(place.dim, self.kv_heads) if value_embedding else None
        self.size = short_conv or 1
        # Positions before the first one that its query, key and value depend on.
        self.reach = self.size - 1 + self.shift
        self.query_conv, self.key_conv, self.value_conv = (
            ShortConvolution(projection.out_features, short_conv)
            if short_conv is not None and projection is not None
            else None
            for projection in (self.query, self.key, self.value)
        )

    def forward(self, x: Float[Tensor, "b i d"], context: Context) -> Float[Tensor, " b #i d"]:
        first, last = context.rows(x)
        earlier = context.recall(self)
        state: State = ()
        if self.reach:
            past = x[:, :0] if earlier is None else earlier[2]
            wide = torch.cat([past, x], dim=1)
            q, k, v = self._near(wide, x.shape[1], context)
            q, state = q[:, :, first:last], (wide[:, -self.reach :],)
        elif context.position is None:
            q, k, v = self.projected(x)
        else:
            q, k, v = self.queries(x[:, first:last]), self.keys(x), self.values(x)
        if self.value_gate is not None:
            embedded = rearrange(
                context.value_embeddings[self], "b i (g k) -> b g i k", g=self.kv_heads
            )
            gates = rearrange(self.value_gate(x), "b i g -> b g i 1")
            v = v + 2 * gates * embedded.to(v.dtype)
        if self.value_residual is not None:
            v = self.value_residual(v, context)
        self_value = v[:, :, first:last]
        new = context.positions(x)
        q, k = context.pos.rotate(q, k, new[first:last], new)
        if earlier is not None:
            k, v = (torch.cat(both, dim=2) for both in zip(earlier[:2], (k, v), strict=True))
        context.remember(self, k, v, *state)
        y = self.read_sequence(q, k, v, context, first)
        if self.exclusive:
            along = F.normalize(every_head(self_value, self.heads), dim=-1)
            y = y - (y * along).sum(-1, keepdim=True) * along
        return self.join(y, x[:, first:last])

    def _near(
        self, wide: Float[Tensor, "b j d"], count: int, context: Context
    ) -> tuple[
        Float[Tensor, "b h {count} _"],
        Float[Tensor, "b _ {count} _"],
        Float[Tensor, "b g {count} k"],
    ]:
        """Queries, keys and values of the last `count` positions, from the input of up to `reach`
        positions before them and their own; padding is read as zeros."""
        documents, padding = context.documents, None
        if context.keep is not None:
            padding = ~context.keep[:, -wide.shape[1] :, None]
        missing = count + self.reach - wide.shape[1]  # zeros before the first token
        of_outputs = None if documents is None else documents.after(self.shift)

        def of(
            projection: nn.Linear | None, conv: ShortConvolution | None, heads: int, shift: int = 0
        ) -> Float[Tensor, "b {heads} i _"]:
            if projection is None:
                return wide.new_zeros(len(wide), heads, count, 0)
            y = projection(wide)
            y = F.pad(y if padding is None else y.masked_fill(padding, 0.0), (0, 0, missing, 0))
            if conv is not None:
                y = y[:, self.size - 1 :] + conv(y, of_outputs)
            y = y[:, y.shape[1] - count - shift : y.shape[1] - shift]
            if shift and documents is not None:
                y = y.masked_fill(documents.position[..., None] == 0, 0.0)
            return rearrange(y, "b i (h k) -> b h i k", h=heads)

        return (
            self.scaled(of(self.query, self.query_conv, self.heads)),
            self.key_norm(of(self.key, self.key_conv, self.kv_heads, self.shift)),
            of(self.value, self.value_conv, self.kv_heads),
        )
