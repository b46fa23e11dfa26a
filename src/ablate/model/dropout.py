"""Dropout, Srivastava et al. 2014, https://jmlr.org/papers/v15/srivastava14a.html.

As torch.nn.Dropout, which on a CPU that is not Intel's draws one number after the other and takes
a sixth of a Transformer's training step.
"""

import torch
from torch import Tensor, nn

BITS = 16  # of a random number for each unit: the rate is rounded to 1 / 2^16


class Dropout(nn.Dropout):
    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p in (0, 1) or x.device.type != "cpu":
            return super().forward(x)
        drawn = torch.empty(-(-x.numel() * BITS // 64), dtype=torch.int64).random_(-(2**63), None)
        lowest = round(self.p * 2**BITS) - 2 ** (BITS - 1)  # int16 begins at -2^15
        kept = (drawn.view(torch.int16)[: x.numel()] >= lowest).view(x.shape)
        return x * kept.to(x.dtype).div_(1 - self.p)
