"""Rotary position embedding (RoPE): pair m of a query or key at n is rotated by n / base^(2m/k).

Su et al. 2021, "RoFormer", section 3.2.2, https://arxiv.org/abs/2104.09864. The inner product of a
query and a key then depends on their relative position alone. Pair m of a head of width k is
(2m, 2m + 1) in the paper, layout=interleaved; (m, m + k/2) in GPT-NeoX, layout=half. The two differ
by a permutation of the width, which a learned projection absorbs.
There is no distance between two sequences: cross-attention rotates nothing.
"""

from typing import Any, ClassVar, Literal

import torch
from einops import rearrange
from torch import Tensor

from ablate.config.facts import Conflict
from ablate.config.rules import Positive
from ablate.errors import UserError, suggest
from ablate.pos_enc import PosEnc, require_positive_base

LAYOUTS = ("half", "interleaved")


class Rotary(PosEnc):
    """Rotates queries and keys; no parameters, any length."""

    compares: ClassVar[bool] = True
    conflicts = (
        Conflict(
            lambda c: (
                c("model.dim") % c("model.heads") == 0
                and c("model.dim") // c("model.heads") % 2 == 1
            ),
            "pos_enc=rotary rotates pairs of dimensions and needs an even head width; here it is"
            " model.dim={model.dim} / model.heads={model.heads}",
        ),
    )

    def __init__(
        self, *, base: Positive, layout: Literal["half", "interleaved"], **sizes: Any
    ) -> None:
        super().__init__(**sizes)
        if layout not in LAYOUTS:
            raise UserError(
                f"pos_enc.layout={layout} must be one of {', '.join(LAYOUTS)}"
                f"{suggest(str(layout), LAYOUTS)}"
            )
        if self.head_dim % 2:
            raise UserError(
                f"pos_enc=rotary turns pairs of numbers and needs heads of even width, here "
                f"{self.head_dim}; change model.dim or model.heads"
            )
        require_positive_base(base)
        self.base = base
        flat = "b h n (k pair)" if layout == "interleaved" else "b h n (pair k)"
        self.pairs = f"{flat} -> pair b h n k"
        self.unpair = f"pair b h n k -> {flat}"

    def rotate(self, q: Tensor, k: Tensor, i: Tensor, j: Tensor) -> tuple[Tensor, Tensor]:
        return self.turn(q, i), self.turn(k, j)

    def turn(self, x: Tensor, positions: Tensor) -> Tensor:
        """Rotate `b h n k` by the positions `n`, computed in float32 or wider."""
        exact = torch.promote_types(x.dtype, torch.float32)
        exponents = torch.arange(0, self.head_dim, 2, device=x.device, dtype=exact) / self.head_dim
        angles = positions.to(exact)[:, None] / self.base**exponents
        cos, sin = angles.cos(), angles.sin()
        first, second = rearrange(x.to(exact), self.pairs, pair=2)
        turned = torch.stack([first * cos - second * sin, first * sin + second * cos])
        return rearrange(turned, self.unpair).to(x.dtype)
