"""Self-attention: weights that depend on the input (model.attention and the groups beside it).

Vaswani et al. 2017, section 3.2.2, https://arxiv.org/abs/1706.03762.
"""

import torch
from torch import Tensor

from ablate.model.layers.layer import Context
from ablate.model.layers.multi_head import MultiHeadAttention


class Attention(MultiHeadAttention):
    """Every position attends to the positions of the same sequence."""

    reads_positions = True
    reads_mask = True
    caches = True

    def forward(self, x: Tensor, context: Context) -> Tensor:
        pos, start, position = context.pos, context.start, context.position
        first, last = (0, x.shape[1]) if position is None else (position, position + 1)
        q, (k, v) = self.queries(x[:, first:last]), self.keys_and_values(x)
        new = torch.arange(start, start + x.shape[1], device=x.device)
        q, k = pos.rotate(q, k, new[first:last], new)
        if (before := context.recall(self)) is not None:
            k, v = (torch.cat(both, dim=2) for both in zip(before, (k, v), strict=True))
        context.remember(self, k, v)
        return self.attend(q, k, v, pos, start=start + first, keep=context.keep, use=context.use)
