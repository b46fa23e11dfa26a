"""Multi-head latent attention (MLA): keys and values of all heads from one small latent.

DeepSeek-AI 2024, "DeepSeek-V2", section 2.1, https://arxiv.org/abs/2405.04434: c = norm(W_d x), k =
W_k c, v = W_v c (equations 9 to 11), so that a cache contains only c. A rotation would be between
W_k and the query; so with pos_enc=rotary `rotary_dim` further dimensions of each head are rotated,
whose key is one for all heads (decoupled rotary, equations 14 to 19), and is cached too.
"""

from dataclasses import replace
from typing import Annotated, Unpack

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ablate.config.conflicts import Conflict
from ablate.config.rules import Int, Width
from ablate.model.attention import Score
from ablate.model.layers.layer import Context, LayerSpec, State
from ablate.model.layers.linear import Linear
from ablate.model.layers.multi_head import AttentionKeys, MultiHeadAttention


class LatentAttention(MultiHeadAttention):
    """rank: numbers of the latent; null: a quarter of the width."""

    conflicts = (
        Conflict(
            lambda c: not c.declares("model.attention", "key"),
            "model.attention={model.attention} reads no keys, which model.mixer=latent makes; use"
            " model.mixer=attention",
        ),
    )

    def __init__(
        self,
        place: LayerSpec,
        *,
        rank: Width | None,
        rotary_dim: Annotated[int, Int(2)],
        **keys: Unpack[AttentionKeys],
    ) -> None:
        rotated = rotary_dim if place.pos.rotates else 0
        wide = place.dim // place.heads + rotated

        def score(**sizes: object) -> Score:
            return place.score(**sizes | {"query_dim": wide, "key_dim": wide})

        assert "kv_heads" not in keys
        super().__init__(replace(place, score=score), **keys)
        rank = rank or max(1, place.dim // 4)
        self.rotary_dim = rotated
        self.down = Linear(place.dim, rank, bias=False, std=place.std)
        self.latent_norm = nn.RMSNorm(rank)
        assert self.key is not None
        self.key = Linear(rank, self.key.out_features, bias=place.bias, std=rank**-0.5)
        self.value = Linear(rank, self.value.out_features, bias=place.bias, std=rank**-0.5)
        self.rotary_query = self.rotary_key = None
        if rotated:
            self.rotary_query = Linear(place.dim, place.heads * rotated, bias=False, std=place.std)
            self.rotary_key = Linear(place.dim, rotated, bias=False, std=place.std)

    def forward(self, x: Float[Tensor, "b i d"], context: Context) -> Float[Tensor, " b #i d"]:
        first, last = context.rows(x)
        earlier = context.recall(self)
        state: State = (self.latent_norm(self.down(x)),)
        q = self.queries(x[:, first:last])
        if self.rotary_query is not None and self.rotary_key is not None:
            new = context.positions(x)
            turned, key = context.pos.rotate(
                self._heads(self.rotary_query, x[:, first:last], self.heads),
                self._heads(self.rotary_key, x, 1),
                new[first:last],
                new,
            )
            q, state = torch.cat([q, turned], dim=-1), (*state, key[:, 0])
        if earlier is not None:
            state = tuple(torch.cat(both, dim=1) for both in zip(earlier, state, strict=True))
        context.remember(self, *state)
        k, v = self.keys(state[0]), self.values(state[0])
        if self.rotary_dim:
            k = torch.cat([k, state[1][:, None].expand(-1, self.heads, -1, -1)], dim=-1)
        y = self.read_sequence(q, k, v, context, first)
        return self.join(y, x[:, first:last])
