"""Sinusoidal in two dimensions: x -> x + [p(row); p(column)], with p of half the width.

Chen et al. 2021, "An empirical study of training self-supervised vision transformers" (MoCo v3),
section 5, https://arxiv.org/abs/2104.02057. p has a sine and a cosine for each of d/4 frequencies,
the formula of pos_enc=sinusoidal at width d/2. The order of the numbers differs from MoCo's code
(row before column, sines and cosines in turn).
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ablate.config.conflicts import Conflict
from ablate.config.rules import Positive
from ablate.pos_enc import GridPosEnc
from ablate.pos_enc.sinusoidal import waves


class Sinusoidal2d(GridPosEnc):
    """Fixed sinusoids of the rows and of the columns of an image's patches."""

    conflicts = (
        Conflict(
            lambda c: c("model.dim") % 4 != 0,
            "pos_enc=sinusoidal_2d needs a model.dim that is a multiple of 4, not {model.dim}",
        ),
    )

    option = "sinusoidal_2d"

    def __init__(self, *, base: Positive, **sizes: Any) -> None:
        super().__init__(**sizes)
        assert self.dim % 4 == 0
        self.base = base

    def axes(
        self, x: Float[Tensor, "b i d"]
    ) -> tuple[Float[Tensor, "{self.rows} d//2"], Float[Tensor, "{self.columns} d//2"]]:
        positions = (torch.arange(size, device=x.device) for size in (self.rows, self.columns))
        row, column = (
            waves(each, dim=self.dim // 2, base=self.base, dtype=x.dtype) for each in positions
        )
        return row, column
