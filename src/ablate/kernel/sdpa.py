"""torch.nn.functional.scaled_dot_product_attention, for scores with an exact `lower`."""

from functools import partial
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from ablate.kernel import Attend, Kernel, Layer, hides_weights
from ablate.model.mask.causal import Causal


class SDPA(Kernel):
    """torch's fused attention on the lowered queries and keys, with biases and masks."""

    name: ClassVar[str] = "sdpa"

    def refuses(self, layer: Layer) -> str | None:
        if not layer.score.lowers:
            return f"the score {type(layer.score).__name__} is not a scaled dot product"
        return hides_weights(layer)

    def __call__(self, attend: Attend) -> Tensor:
        lowered = attend.score.lower(attend.q, attend.k)
        assert lowered is not None
        q, k, scale = lowered
        # The fast paths want queries, keys and values of one width; zeros change no product.
        if (missing := attend.v.shape[-1] - q.shape[-1]) > 0:
            q, k = F.pad(q, (0, missing)), F.pad(k, (0, missing))
        # torch applies `dropout_p` in evaluation too; Attend.dropout is 0 there.
        run = partial(
            F.scaled_dot_product_attention, q, k, attend.v,
            dropout_p=attend.dropout, scale=float(scale),
        )  # fmt: skip
        square = attend.queries == attend.keys and attend.start == 0
        if isinstance(attend.mask, Causal) and square and attend.keep is None:
            i, j = attend.positions()
            if (bias := attend.pos.bias(attend.q, i, j, attend.layer)) is None:
                return run(is_causal=True)
        bias, allowed = attend.bias_and_mask()
        empty = None
        if allowed is not None and attend.keep is not None:
            # Only padding can leave a query with nothing to see. Such a row is computed as if it
            # saw everything, so that no backend meets it, and then set to zero.
            empty = ~allowed.any(-1, keepdim=True)
            allowed = allowed | empty
        if bias is None:
            where = allowed
        elif allowed is None:
            where = bias.to(q.dtype)
        else:
            where = bias.to(q.dtype).masked_fill(~allowed, -torch.inf)
        if where is not None:
            where = where.expand(-1, -1, attend.queries, -1) if where.dim() == 4 else where
        context = run(attn_mask=where)
        return context if empty is None else context.masked_fill(empty, 0.0)
