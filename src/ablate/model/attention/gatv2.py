"""GATv2: score(q, k) = v . LeakyReLU(W q + U k): the additive score with another activation.

Brody et al. 2022, "How attentive are graph attention networks?", equation 7,
https://arxiv.org/abs/2105.14491; v, W and U are initialized as in Glorot and Bengio 2010. Unlike
with model.attention=gat, the ranking of the keys depends on the query.
"""

from typing import ClassVar

from torch import nn

from ablate.model.attention import Score
from ablate.model.attention.additive import Additive
from ablate.model.attention.gat import SLOPE


class GATv2(Additive):
    """As Additive; with hidden=None, W and U are the model's projections."""

    option: ClassVar[str] = "gatv2"
    fused = Score.fused  # that of Additive has its activation
    slope: ClassVar[float | None] = SLOPE

    def reset_parameters(self) -> None:
        for parameter in (self.w, self.u, self.v):
            if parameter is not None:
                # Per head; v maps its width to one number.
                fan = sum(parameter.shape[1:]) if parameter.dim() == 3 else parameter.shape[1] + 1
                bound = (6 / fan) ** 0.5
                nn.init.uniform_(parameter, -bound, bound)
