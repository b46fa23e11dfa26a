"""Sequences shifted by one token, for parts of a model that read pairs of tokens."""

import torch
from jaxtyping import Shaped
from torch import Tensor, nn

from ablate.kernel.interface.documents import Documents
from ablate.model.layers.layer import Cache


def token_before(
    reader: nn.Module,
    x: Shaped[Tensor, "b i *n"],
    first: float,
    documents: Documents | None,
    cache: Cache | None,
) -> Shaped[Tensor, "b i *n"]:
    """Shift x by one token; the first token of a row or of a document gets `first`.

    x: with a cache only the new tokens. reader: the module whose state in the cache is the last
    token.
    """
    before = x.new_full((len(x), 1, *x.shape[2:]), first)
    if cache is not None:
        (before,) = cache.states.get((0, reader), (before,))
        cache.states[0, reader] = (x[:, -1:],)
    shifted = torch.cat([before, x[:, :-1]], dim=1)
    if documents is not None:
        start = documents.position == 0
        shifted = shifted.masked_fill(start.view(*start.shape, *[1] * (x.ndim - 2)), first)
    return shifted
