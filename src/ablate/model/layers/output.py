"""The output map of models that predict tokens."""

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn


def logits(
    x: Float[Tensor, "*n d"],
    head: nn.Module | None,
    table: Float[Tensor, "_ d"],
    cap: float | None,
    *,
    scale: float = 1.0,
) -> Float[Tensor, "*n v"]:
    """The logits of each state, by the head or, if None, by the table of embeddings (weight tying).

    cap: c of c tanh(z / c), which keeps a logit z between -c and c (soft capping: Gemma 2, section
    2, https://arxiv.org/abs/2408.00118); None: as they are. scale: a factor of the logits.
    """
    z = F.linear(x, table) if head is None else head(x)
    z = z if scale == 1 else scale * z
    return z if cap is None else cap * (z / cap).tanh()
