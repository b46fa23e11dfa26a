"""Rotary position embedding (RoPE): pair m of a query or key at n is rotated by n / base^(2m/r).

Su et al. 2021, "RoFormer", section 3.2.2, https://arxiv.org/abs/2104.09864. The inner product of a
query and a key then depends only on their relative position. Pair m of the r rotated dimensions of
a head is (2m, 2m + 1) in the paper, layout=interleaved; (m, m + r/2) in GPT-NeoX, layout=half. The
two differ by a permutation of the width, which a learned projection absorbs.

share: r over the head width; the first dimensions are rotated, as in GPT-NeoX (Black et al. 2022,
https://arxiv.org/abs/2204.06745).
scaling: how angles are changed for texts `factor` times as long as those of training, s below.
linear: n / s, position interpolation (Chen et al. 2023, https://arxiv.org/abs/2306.15595). ntk:
base s^(r / (r - 2)), the NTK-aware base (for texts of any length; transformers' dynamic raises it
with the length of each text), and yarn, both of Peng et al. 2023,
https://arxiv.org/abs/2309.00071: yarn interpolates a pair that turns less than once within the
training length L, leaves one as it is that turns more than 32 times, and is linear in its turns in
between; its scores are (0.1 ln s + 1)^2 times as large (equations 17 to 22). yarn_index is the
variant of the authors' code and of transformers: linear in m between the pairs that turn 32 times
and once, rounded outwards, so that angles of some pairs differ a lot; dimensions that are not
rotated (`share` < 1) are not scaled. Scores that normalize queries and keys, such as cosine, undo
yarn's factor, and with mixer=latent it applies only to the rotated part. None has parameters:
python -m ablate.evaluate RUN pos_enc.scaling=yarn pos_enc.factor=4 data.seq_len=512
"""

import math
from typing import Annotated, Any, Literal

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

from ablate.config.conflicts import Conflict
from ablate.config.rules import Positive, Real
from ablate.errors import UserError
from ablate.pos_enc import Randomized

SLOW, FAST = 1, 32  # turns: alpha and beta of Peng et al. 2023, for LLaMA


class Rotary(Randomized):
    """Rotates queries and keys; no parameters, any length."""

    rotates = True
    conflicts = (
        Conflict(
            lambda c: (
                c("pos_enc.share") == 1
                and c("model.dim") % c("model.heads") == 0
                and c("model.dim") // c("model.heads") % 2 == 1
            ),
            "pos_enc=rotary (RoPE) rotates pairs of dimensions: the head width must be even; here"
            " it is model.dim={model.dim} / model.heads={model.heads}",
        ),
    )

    measured_with = ("scaling", "factor", "randomize")

    def __init__(
        self,
        *,
        base: Positive,
        layout: Literal["half", "interleaved"],
        share: Annotated[float, Real(0, 1, above=True)] = 1.0,
        scaling: Literal["linear", "ntk", "yarn", "yarn_index"] | None = None,
        factor: Annotated[float, Real(1)] = 2.0,
        **sizes: Any,
    ) -> None:
        super().__init__(**sizes)
        self.share = share
        width = round(share * self.head_dim)
        if width % 2 or not width:
            raise UserError(
                f"pos_enc=rotary rotates pairs of dimensions, here pos_enc.share={share:g} of heads"
                f" of width {self.head_dim}: {width}; change that to an even number by"
                f" pos_enc.share, model.dim or model.heads"
            )
        if scaling == "yarn_index" and base <= 1:
            raise UserError(f"pos_enc.base={base:g}: must be above 1 for pos_enc.scaling={scaling}")
        self.base, self.scaling, self.factor = base, scaling, factor
        # Scores are its square times as large.
        self.size = 0.1 * math.log(factor) + 1 if scaling in ("yarn", "yarn_index") else 1.0
        flat = "b h n (k pair)" if layout == "interleaved" else "b h n (pair k)"
        self.pairs = f"{flat} -> pair b h n k"
        self.unpair = f"pair b h n k -> {flat}"

    def rotate(
        self,
        q: Float[Tensor, "b h i k"],
        k: Float[Tensor, "b g j l"],
        i: Int[Tensor, " i"],
        j: Int[Tensor, " j"],
    ) -> tuple[Float[Tensor, "b h i k"], Float[Tensor, "b g j l"]]:
        return self.turn(q, self.places(i)), self.turn(k, self.places(j))

    def periods(self, r: int, device: torch.device, dtype: torch.dtype) -> Float[Tensor, " {r}//2"]:
        """The number of positions over which each pair of r dimensions turns by 1."""
        base, s = self.base, self.factor
        if self.scaling == "ntk" and r > 2:
            base = base * s ** (r / (r - 2))
        exponents = torch.arange(0, r, 2, device=device, dtype=dtype) / r
        periods = base**exponents
        if self.scaling == "linear":
            return periods * s
        if self.scaling is None or self.scaling == "ntk":
            return periods
        if self.scaling == "yarn":
            turns = self.length / (2 * math.pi * periods)  # within the training length
            ramp = ((turns - SLOW) / (FAST - SLOW)).clamp(0, 1)
        else:
            first = max(math.floor(self._pair(FAST, r)), 0)
            last = min(math.ceil(self._pair(SLOW, r)), r - 1)
            pairs = torch.arange(r // 2, device=device, dtype=dtype)
            ramp = 1 - ((pairs - first) / (last - first or 1e-3)).clamp(0, 1)
        return periods / (ramp + (1 - ramp) / s)

    def _pair(self, turns: int, r: int) -> float:
        """The pair of r dimensions, a fraction, that turns so often within the training length."""
        return r / 2 * math.log(self.length / (2 * math.pi * turns)) / math.log(self.base)

    def turn(
        self, x: Float[Tensor, "b h n k"], positions: Int[Tensor, " n"]
    ) -> Float[Tensor, "b h n k"]:
        """Rotate by the positions, computed in float32 or wider."""
        exact = torch.promote_types(x.dtype, torch.float32)
        # Even for a mixer whose queries have another width than `head_dim`.
        r = 2 * (round(self.share * x.shape[-1]) // 2)
        angles = positions.to(exact)[:, None] / self.periods(r, x.device, exact)
        cos, sin = angles.cos(), angles.sin()
        first, second = rearrange(x[..., :r].to(exact), self.pairs, pair=2)
        turned = torch.stack([first * cos - second * sin, first * sin + second * cos])
        if self.scaling == "yarn_index":
            turned = turned * self.size
        turned = torch.cat([rearrange(turned, self.unpair), x[..., r:].to(exact)], dim=-1)
        return (turned * self.size if self.scaling == "yarn" else turned).to(x.dtype)
